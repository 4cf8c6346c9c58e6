"""The recipe on scikit-learn's handwritten digits: what it reaches, and the same numbers on 1, 2 and 4 ranks.

Run with pytest, in an environment with scikit-learn.
"""

import pathlib
import subprocess
import sys
import unittest

import numpy as np
from safetensors.numpy import load_file

from command import CommandTest

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"
LEAST_ACCURACY, POINT = 0.98, 0.01
TAU, FLOOR = 1e-12, 1e-14
STEPS = 20
BATCH = 64


class Digits(CommandTest):
    def setUp(self):
        super().setUp()
        done = subprocess.run([sys.executable, RECIPES / "make_digits.py", self.folder / "data/digits"], check=True,
                              capture_output=True, text=True)
        self.assertIn("1797 images", done.stdout)

    def trained(self, ranks, *sets):
        """The folder of a run of the recipe, as it is but for `sets`."""
        run = f"digits-{ranks}"
        words = [word for one in (f"name={run}", "observe.tensorboard=false", *sets) for word in ("--set", one)]
        self.succeeds(self.troika("train", RECIPES / "digits.toml", "--ranks", ranks, "--overwrite", *words))
        return self.folder / "runs" / run

    def test_the_recipe_on_one_and_two_ranks(self):
        reached = [self.metrics(self.trained(ranks))[-1]["held_out_accuracy"] for ranks in (1, 2)]
        self.assertGreaterEqual(min(reached), LEAST_ACCURACY)
        self.assertLessEqual(max(reached) - min(reached), POINT)

    def test_ranks_agree_in_fp64(self):
        """Norms see the same images: the microbatches of all ranks are one batch."""
        sets = ("train.precision=fp64", "train.deterministic=true", f"train.steps={STEPS}", "optimizer.lr=0.02",
                f"debug.dump_steps=[1,{STEPS}]", "train.evaluate_every_steps=0")
        dumps = [self.trained(ranks, *sets, f"train.micro_batch_size={BATCH // ranks}") / "dump" for ranks in (1, 2, 4)]
        for step in (1, STEPS):
            first, *others = [load_file(dump / f"step-{step}" / "gradients.safetensors") for dump in dumps]
            largest = max(np.abs(each).max() for each in first.values())
            for other in others:
                self.assertEqual(set(other), set(first))
                for tensor, gradient in first.items():
                    self.assertLessEqual(np.abs(other[tensor] - gradient).max(),
                                         TAU * np.abs(gradient).max() + FLOOR * largest, f"step {step}: {tensor}")


if __name__ == "__main__":
    unittest.main()
