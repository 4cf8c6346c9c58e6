"""Runs of the command whose every update a judge works out anew: clipping, rate, step count, decay and optimiser.

Run with pytest, in an environment with PyTorch.
"""

import json
import pathlib
import shutil
import sys
import tomllib
from unittest import mock

from command import CommandTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "judge"))
import update_reference

AGREES, DISAGREES = 0, 1
CLIP = 1.95
STEPS = 5
# Few documents at a time: gradient norms of many sizes. Biases and norms do not decay.
COMMON = ("train.precision=fp64", f"train.steps={STEPS}", "train.global_batch_size=3", "data.pack=pad",
          "train.evaluate_every_steps=0", f"debug.dump_steps={list(range(1, STEPS + 1))}", f"train.grad_clip={CLIP}",
          "model.norm=layernorm", "model.bias=true", "optimizer.weight_decay=0.3", "optimizer.lr=0.05",
          "optimizer.min_lr=0.01", "optimizer.warmup_steps=2", "observe.tensorboard=false")
ONE_LETTER = ("data.pack=concatenate", "data.held_out_fraction=0", "optimizer.warmup_steps=0")
MLP = """
name = "small"
[model]
kind = "mlp"
input_dim = 2
hidden_dims = []
output_dim = 2
[data]
kind = "random"
[train]
steps = 12
global_batch_size = 6
micro_batch_size = 6
precision = "fp64"
evaluate_every_steps = 0
[optimizer]
lr = 0.5
min_lr = 0.02
warmup_steps = 4
[observe]
tensorboard = false
"""


class JudgedUpdates(CommandTest):
    def setUp(self):
        super().setUp()
        for k, letter in enumerate("abcdefghijkl"):  # beside words: gradients of other sizes
            (self.folder / "text" / f"letter-{letter}.txt").write_text(letter * (20 + k))

    def verdict(self, run=None, *arguments):
        with mock.patch.object(sys, "argv", ["judge", str(run or self.run_folder), *arguments]):
            return update_reference.main()

    def judged(self, *sets):
        """Trains on 2 ranks; returns what the steps' norms were, before clipping."""
        self.succeeds(self.train(*COMMON, *sets, ranks=2))
        self.assertEqual(self.verdict(), AGREES)
        return [line["grad_norm"] for line in self.metrics()]

    def judged_with_clipping(self, *sets):
        norms = self.judged(*sets)
        self.assertGreater(max(norms), 1.05 * CLIP, "a step whose gradients are clipped")
        self.assertLess(min(norms), 0.95 * CLIP, "a step whose gradients are not clipped")

    def test_sgd_with_momentum(self):
        self.judged_with_clipping("optimizer.kind=sgd", "optimizer.momentum=0.9")

    def test_sgd_with_nesterov_momentum_and_without_clipping(self):
        self.judged("optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true", "train.grad_clip=0")

    def test_adamw(self):
        self.judged_with_clipping("optimizer.kind=adamw")

    def test_lamb(self):
        self.judged_with_clipping("optimizer.kind=lamb")

    def test_lars(self):
        self.judged_with_clipping("optimizer.kind=lars", "optimizer.momentum=0.9", "optimizer.lr=5.0")

    def test_lars_with_nesterov_momentum(self):
        self.judged_with_clipping("optimizer.kind=lars", "optimizer.momentum=0.9", "optimizer.nesterov=true",
                                  "optimizer.lr=5.0")

    def test_lion(self):
        self.judged_with_clipping("optimizer.kind=lion", "optimizer.lr=0.02")

    def test_fp16_skips_halves_and_recovers(self):
        # One letter: the gradients of all targets point the same way, and overflow at the first loss scales.
        for path in (self.folder / "text").iterdir():
            path.write_text("a" * 300)
        for ranks, layout in ((2, ()), (2, ("parallel.tensor=2",)), (2, ("model.layers=2", "parallel.pipeline=2")),
                              (4, ("parallel.tensor=2", "parallel.zero_stage=3")),
                              (4, ("model.layers=2", "parallel.pipeline=2", "parallel.pipeline_schedule=zb-h1"))):
            with self.subTest(layout):
                self.fp16_skips_halves_and_recovers(ranks, layout)

    def fp16_skips_halves_and_recovers(self, ranks, layout):
        steps = 10
        done = self.succeeds(self.train(*COMMON, "train.precision=fp16", f"train.steps={steps}", *ONE_LETTER,
                                        f"debug.dump_steps={list(range(1, steps + 1))}", "optimizer.kind=adamw",
                                        *layout, ranks=ranks, flags=["--json", "--overwrite"]))
        metrics = self.metrics()
        skipped, scale = [], 65536
        for line in metrics:
            self.assertEqual(line["loss_scale"], scale)
            self.assertEqual(f"step {line['step']} was skipped" in done.err, line["grad_norm"] is None)
            if line["grad_norm"] is None:
                skipped.append(line["step"])
                scale /= 2
        self.assertEqual(skipped[:1], [1])
        self.assertLess(skipped[-1], steps - 4, "no scale is found that works")
        self.assertEqual(json.loads(done.out)["updates"], steps - len(skipped))
        self.assertLess(metrics[-1]["loss"], 0.8 * metrics[0]["loss"])
        # A skipped step changes no bit, and the others are right: AdamW's bias correction counts those alone.
        self.assertEqual(self.verdict(None, "--tolerance", "1e-5", "--floor", "2e-7"), AGREES)

    def test_the_judge_notices(self):
        """Another recipe than the one that the run had: what an error in the trainer would look like."""
        self.judged_with_clipping("optimizer.kind=adamw")
        recipe = (self.run_folder / "recipe.toml").read_text()
        for right, wrong in ((f"grad_clip = {CLIP}", "grad_clip = 0.0"), ("weight_decay = 0.3", "weight_decay = 0.0"),
                             ("warmup_steps = 2", "warmup_steps = 1"), ("lr = 0.05", "lr = 0.0500001"),
                             ("betas = [0.9, 0.95]", "betas = [0.9, 0.9500001]"), ('"cosine"', '"linear"')):
            with self.subTest(wrong):
                self.assertIn(right, recipe)
                shutil.copytree(self.run_folder, self.folder / "wrong", dirs_exist_ok=True)
                (self.folder / "wrong" / "recipe.toml").write_text(recipe.replace(right, wrong, 1))
                self.assertEqual(self.verdict(self.folder / "wrong"), DISAGREES)


class LearningRates(CommandTest):
    def test_every_schedule_and_the_linear_scaling_rule(self):
        (self.folder / "recipe.toml").write_text(MLP)
        scaled = ("optimizer.lr_base_batch_size=2", "optimizer.warmup_steps=3")
        for sets in (("constant",), ("linear",), ("cosine",), ("wsd",), ("cosine", *scaled),
                     ("wsd", "optimizer.lr_base_batch_size=24", "optimizer.warmup_steps=11")):
            with self.subTest(sets):
                self.succeeds(self.train(f"optimizer.schedule={sets[0]}", *sets[1:], flags=["--overwrite"]))
                recipe = tomllib.loads((self.run_folder / "recipe.toml").read_text())
                for line in self.metrics():
                    wanted = update_reference.learning_rate(recipe["optimizer"], recipe["train"], line["step"])
                    self.assertAlmostEqual(line["learning_rate"], wanted, delta=1e-14 * wanted, msg=line["step"])
