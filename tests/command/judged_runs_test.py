"""Independent judges of what `troika train` computes: plain fp64 PyTorch, and the `transformers` package.

Every choice of the recipe's [model] and of data.pack comes in some run, and so does the held-out loss. Run with
pytest, in an environment with PyTorch and transformers.
"""

import math
import pathlib
import shutil
import sys
from unittest import mock

import torch
from safetensors.torch import load_file

from command import CommandTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "judge"))
import dump
import gpt_reference
import transformers_reference

AGREES = 0
SEQ_LEN = 32
# 5 samples: no multiple of ranks x micro-batch.
COMMON = ("train.precision=fp64", "train.steps=3", "train.global_batch_size=5", "train.evaluate_every_steps=0",
          "debug.dump_steps=[1, 3]", "data.held_out_fraction=0", "model.layers=2", "model.heads=4", "model.dim=24")
LLAMA = ("model.kv_heads=2", "model.head_dim=8", "model.rope_theta=500.0")
GPT2 = ("model.norm=layernorm", "model.position=learned", "model.activation=gelu_tanh", "model.bias=true")
LLAMA3 = ("model.rope_scaling=llama3", "model.rope_factor=4", "model.rope_original_len=16")
QWEN2 = (*LLAMA, "model.qkv_bias=true", "model.rope_scaling=linear", "model.rope_factor=3")
QWEN3 = (*LLAMA, "model.qk_norm=true", *LLAMA3)
UNTIED = ("model.tied_embeddings=false", "model.kv_heads=1", "model.activation=gelu", "model.norm=layernorm",
          "model.norm_eps=1e-3", "model.head_dim=4")


class JudgedRuns(CommandTest):
    def judged(self, *sets, by=(gpt_reference,)):
        """Trains on 1 and on 2 ranks; returns the batch of the last step."""
        for ranks in (1, 2):
            name = f"on-{ranks}"
            self.succeeds(self.train(f"name={name}", *COMMON, *sets, ranks=ranks))
            run = self.folder / "runs" / name
            for judge in by:
                with self.subTest(judge=judge.__name__, ranks=ranks), \
                        mock.patch.object(sys, "argv", ["judge", str(run)]):
                    self.assertEqual(judge.main(), AGREES)
        return dump.load_dump(run, 3).batch

    def test_like_llama(self):
        batch = self.judged(*LLAMA, by=(gpt_reference, transformers_reference))
        self.assertEqual(batch["input_ids"].shape, (5, SEQ_LEN))
        self.assertEqual(batch["sample_ids"].tolist(), [10, 11, 12, 13, 14])

    def test_like_gpt2(self):
        self.judged(*GPT2, by=(gpt_reference, transformers_reference))

    def test_like_qwen2(self):
        self.judged(*QWEN2, by=(gpt_reference, transformers_reference))

    def test_like_qwen3(self):
        self.judged(*QWEN3, by=(gpt_reference, transformers_reference))

    def test_untied_with_one_head_of_keys_and_the_exact_gelu(self):
        self.judged(*UNTIED)

    def test_short_documents_are_padded(self):
        self.write_short_documents()
        batch = self.judged("data.pack=pad", *LLAMA)
        counts = (batch["targets"] != dump.IGNORED_TARGET).sum(dim=1)
        self.assertGreater(len(set(counts.tolist())), 1, "samples with different numbers of valid tokens")

    def test_packed_documents_do_not_see_each_other(self):
        self.write_short_documents()
        batch = self.judged("data.pack=isolated", *GPT2, "model.tied_embeddings=false")
        self.assertGreater(batch["document_ids"].unique().numel(), 2)

    def test_the_documented_lines_load_a_model_into_transformers(self):
        """It goes on from a prompt as `troika generate` does, always with the likeliest byte."""
        self.succeeds(self.train("name=quickstart", "train.precision=fp32", "train.steps=30", ranks=2))
        text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "safetensors.md").read_text()
        lines = text.split("```python\n")[2].split("```")[0].replace("runs/quickstart", str(self.folder / "runs/quickstart"))
        names = {}
        exec(lines, names)
        ids = torch.tensor([list(b"aa bb")])
        for _ in range(20):
            ids = torch.cat([ids, names["model"](ids[:, -SEQ_LEN:]).logits[:, -1:].argmax(-1)], 1)
        done = self.succeeds(self.troika("generate", "runs/quickstart", "--prompt", "aa bb", "--tokens", 20,
                                         "--temperature", 0))
        self.assertEqual(bytes(ids[0].tolist()).decode(), done.out.rstrip("\n"))

    def test_held_out_loss(self):
        """Of the documents that no step has seen, with the parameters that the run ended with."""
        self.write_short_documents()
        texts = [path.read_bytes() for path in sorted((self.folder / "text").iterdir())]
        # A whole pass and more in one step.
        sets = ("train.steps=1", f"train.global_batch_size={len(texts)}", "debug.dump_steps=[1]",
                "data.held_out_fraction=0.3", "train.evaluate_every_steps=1", "data.pack=pad")
        run = self.trained_and_evaluated(*sets)
        seen = {bytes(row.tolist()).partition(b"\0")[0] for row in dump.load_dump(run, 1).batch["input_ids"]}
        self.assertLessEqual(seen, set(texts))
        held_out = [text for text in texts if text not in seen]
        self.assertIn(len(held_out), range(len(texts) // 10, len(texts) // 2))
        self.evaluates(run, [(text + b"\0", len(text)) for text in held_out], sum(map(len, held_out)))

        run = self.trained_and_evaluated(*sets, "data.pack=concatenate")
        stream = b"".join(text + b"\0" for text in held_out)
        pieces = [stream[begin:begin + SEQ_LEN + 1] for begin in range(0, len(stream) - 1, SEQ_LEN)]
        self.evaluates(run, [(piece, len(piece) - 1) for piece in pieces], sum(map(len, held_out)))

    def trained_and_evaluated(self, *sets):
        self.succeeds(self.train(*COMMON, *LLAMA, *sets, ranks=2, flags=["--overwrite"]))
        return self.run_folder

    def evaluates(self, run, samples, text_bytes):
        """`samples`: bytes that follow each other, and how many of them have a target."""
        inputs = torch.zeros(len(samples), SEQ_LEN, dtype=torch.int64)
        targets = torch.full_like(inputs, dump.IGNORED_TARGET)
        for row, (text, count) in enumerate(samples):
            inputs[row, :count] = torch.tensor(list(text[:count]))
            targets[row, :count] = torch.tensor(list(text[1:count + 1]))
        parameters = load_file(run / "model.safetensors")
        model = dump.load_dump(run, 1).model
        loss, _ = gpt_reference.loss_and_gradients(model, parameters, {"input_ids": inputs, "targets": targets})
        bits = loss / math.log(2) * sum(count for _, count in samples) / text_bytes
        metrics = self.metrics(run)[-1]
        self.assertAlmostEqual(metrics["held_out_loss"], loss, delta=1e-12 * loss)
        self.assertAlmostEqual(metrics["held_out_bits_per_byte"], bits, delta=1e-12 * bits)

    def write_short_documents(self):
        shutil.rmtree(self.folder / "text")
        (self.folder / "text").mkdir()
        for i in range(60):
            (self.folder / "text" / f"short-{i:02}.txt").write_text(f"document {i}, " + "x" * (i % 17))
