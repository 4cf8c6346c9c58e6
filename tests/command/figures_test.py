"""The figures of metrics.jsonl that say what a run takes of the machine, and the arithmetic counted by other means."""

import json
import math
import statistics
import struct
import time
import unittest

import command
from command import CommandTest
from memory_test import MIB, SANITIZED

RANKS = 2
SETS = ("train.steps=6", "train.evaluate_every_steps=0", "data.held_out_fraction=0", "observe.tensorboard=false")
LLAMA = ("model.layers=2", "model.dim=48", "model.heads=6", "model.kv_heads=2", "model.ffn_dim=80",
         "model.seq_len=40", "train.global_batch_size=5")
GPT2 = ("model.layers=3", "model.heads=4", "model.head_dim=12", "model.norm=layernorm", "model.position=learned",
        "model.activation=gelu", "model.bias=true", "model.tied_embeddings=false")
MLP = """
name = "small"
[model]
kind = "mlp"
input_dim = 9
hidden_dims = [20, 7]
output_dim = 3
[data]
kind = "random"
[train]
global_batch_size = 6
micro_batch_size = 2
"""


def shapes_of(path):
    """The tensors' shapes by name, from the header of a safetensors file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def products_of(shapes):
    """What one token, or one sample of the MLP, is multiplied with: the elements of all matrices but the look-ups."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2 and "embed" not in name}
    tokens = "model.embed_tokens.weight"
    if tokens in shapes and "lm_head.weight" not in shapes:
        matrices[tokens] = shapes[tokens]  # as the output head
    return sum(math.prod(shape) for shape in matrices.values())


def gpt_operations(shapes, seq_len):
    """Of one sample. Attention: each query with half of all keys, and as many values, on average."""
    queries = [shape[0] for name, shape in shapes.items() if name.endswith("q_proj.weight")]
    forward = 2 * products_of(shapes) * seq_len + sum(2 * 2 * width * seq_len * seq_len / 2 for width in queries)
    return 3 * forward  # the backward pass has two products for each of the forward pass


class Figures(CommandTest):
    def test_passes_wait_for_their_samples_where_the_recipe_says_so(self):
        for name, sets in (("all_reduce", ()), ("server", ("sync.kind=server",))):
            with self.subTest(name):
                self.succeeds(self.train(*SETS, f"name={name}", "train.steps=3", "train.global_batch_size=4",
                                         "debug.sample_seconds=0.1", *sets,
                                         ranks=RANKS))
                for line in self.metrics(self.folder / "runs" / name):
                    self.assertGreater(line["step_seconds"], 0.1 * 4 / RANKS)

    def trained(self, *sets):
        """(metrics, summary, shapes) of a run on two ranks."""
        done = self.succeeds(self.train(*SETS, *sets, ranks=RANKS, flags=["--json"]))
        return self.metrics(), json.loads(done.out), shapes_of(self.run_folder / "model.safetensors")

    def has_done(self, operations, metrics):
        for line in metrics:
            self.assertAlmostEqual(line["flops_per_second"] * line["step_seconds"] / operations, 1, delta=1e-12)

    def test_arithmetic_of_grouped_heads_swiglu_and_a_tied_head(self):
        metrics, _, shapes = self.trained(*LLAMA)
        self.assertEqual(shapes["model.layers.1.self_attn.k_proj.weight"], [16, 48])
        self.has_done(5 * gpt_operations(shapes, seq_len=40), metrics)

    def test_arithmetic_of_gelu_wide_heads_and_a_head_of_its_own(self):
        metrics, _, shapes = self.trained(*GPT2)
        self.assertIn("lm_head.weight", shapes)
        self.has_done(4 * gpt_operations(shapes, seq_len=32), metrics)

    def test_arithmetic_of_the_mlp(self):
        (self.folder / "recipe.toml").write_text(MLP)
        metrics, _, shapes = self.trained()
        self.has_done(6 * 3 * 2 * products_of(shapes), metrics)

    def test_memory_time_and_use_of_the_machine(self):
        metrics, summary, _ = self.trained(*LLAMA)
        rates = []
        for before, line in zip([{"tokens": 0}, *metrics], metrics):
            self.assertGreater(line["memory_bytes"], 20e6)  # LibTorch alone is more
            self.assertLessEqual(line["memory_bytes"], 1.02 * summary["ranks"][0]["peak_memory_bytes"])
            self.assertGreaterEqual(line["cpu_utilisation"], 0)
            self.assertLess(0, line["mfu"])
            self.assertGreaterEqual(line["data_wait_seconds"], 0)
            self.assertLess(line["data_wait_seconds"], line["step_seconds"])
            tokens = line["tokens"] - before["tokens"]
            self.assertAlmostEqual(line["tokens_per_second"] * line["step_seconds"], tokens, delta=1e-9 * tokens)
            rates.append(line["flops_per_second"] / line["mfu"] / RANKS)
        self.assertGreater(max(line["cpu_utilisation"] for line in metrics), 0)
        # A share, not a percentage; bursts above a quota are possible.
        self.assertLess(sum(line["cpu_utilisation"] for line in metrics) / len(metrics), 4)
        # One rate of matrix products, measured at the start: more than any processor's 1e8, less than 1e14.
        self.assertAlmostEqual(min(rates) / max(rates), 1, delta=1e-12)
        self.assertTrue(1e8 < rates[0] < 1e14, rates[0])

    @unittest.skipIf(SANITIZED, "memory is not used again under a sanitizer")
    def test_memory_of_tensors_is_used_again(self):
        (self.folder / "recipe.toml").write_text(MLP.replace("[20, 7]", "[1500, 1500]").replace("= 6", "= 256")
                                                 .replace("= 2\n", "= 64\n"))
        sets = ("data.held_out_fraction=0.2", "train.evaluate_every_steps=4", "checkpoint.every_steps=4")
        metrics, summary, _ = self.trained(*sets, "train.steps=11")
        # With fresh memory it was some 10,000 pages a step. Checkpoints are written in the background.
        self.assertLessEqual(statistics.median(line["page_faults"] for line in metrics[2:]), 100, metrics)
        peak = summary["ranks"][0]["peak_tensor_bytes"]
        for line in metrics:
            self.assertTrue(0 < line["cached_tensor_bytes"] <= 1.05 * peak + 4 * MIB, (line, peak))

    def test_time_outside_of_steps(self):
        started = time.monotonic()
        metrics, summary, _ = self.trained(*LLAMA, "data.held_out_fraction=0.2", "train.evaluate_every_steps=2")
        took = time.monotonic() - started
        outside = sum(line["outside_seconds"] for line in metrics)
        # The run's seconds go on to its end: the files of the last step.
        self.assertLess(sum(line["step_seconds"] for line in metrics) + outside, min(took, summary["seconds"]) + 1e-6)
        plain = statistics.median(line["outside_seconds"] for line in metrics if "held_out_loss" not in line)
        evaluated = statistics.median(line["outside_seconds"] for line in metrics if "held_out_loss" in line)
        self.assertTrue(0 < plain < evaluated, metrics)


if __name__ == "__main__":
    command.main()
