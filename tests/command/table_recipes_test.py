"""The recipes on real tables: their quality against scikit-learn's, and the same numbers on 1, 2 and 4 ranks.

Run with pytest, in an environment with scikit-learn and pyarrow.
"""

import pathlib
import subprocess
import sys
import unittest

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

from command import CommandTest

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"
RANKS = (1, 2, 4)
LEAST_AUC = 0.99
MOST_RMSE = 1.02  # times scikit-learn's
POINT = 0.01
TAU = 1e-12
STEPS = 20


class TableRecipes(CommandTest):
    def setUp(self):
        super().setUp()
        subprocess.run([sys.executable, RECIPES / "make_tables.py", self.folder / "data"], check=True, capture_output=True)

    def trained(self, name, ranks, *sets):
        """The folder of a run of a recipe of the repository, as it is but for `sets`."""
        run = f"{name}-{ranks}"
        words = [word for one in (f"name={run}", "observe.tensorboard=false", *sets) for word in ("--set", one)]
        self.succeeds(self.troika("train", RECIPES / f"{name}.toml", "--ranks", ranks, "--overwrite", *words))
        return self.folder / "runs" / run

    def ends_of(self, name, figure):
        """What the runs on each number of ranks end with."""
        return [self.metrics(self.trained(name, ranks))[-1][f"held_out_{figure}"] for ranks in RANKS]

    def test_breast_cancer(self):
        ends = self.ends_of("breast-cancer", "auc")
        self.assertGreaterEqual(min(ends), LEAST_AUC)
        self.assertLessEqual(max(ends) - min(ends), POINT)

    def test_diabetes_beside_scikit_learn(self):
        table = {name: np.array(column) for name, column in pq.read_table(self.folder / "data/diabetes.parquet").to_pydict().items()}
        train = table.pop("split") == "train"
        targets = table.pop("progression")
        features = np.stack(list(table.values()), axis=1)
        features = StandardScaler().fit(features[train]).transform(features)
        peer = MLPRegressor(hidden_layer_sizes=(32,), batch_size=64, learning_rate_init=0.01, max_iter=200, random_state=0)
        guess = peer.fit(features[train], targets[train]).predict(features[~train])
        best = np.sqrt(np.mean((guess - targets[~train]) ** 2))
        self.assertLess(best, 0.8 * targets[~train].std())  # the peer has learned
        ends = self.ends_of("diabetes", "rmse")
        self.assertLessEqual(max(ends), MOST_RMSE * best)
        self.assertLessEqual(max(ends) - min(ends), POINT * max(ends))

    def test_ranks_agree_in_fp64(self):
        for name, lr in (("breast-cancer", 0.1), ("diabetes", 1e-4)):
            sets = ("train.precision=fp64", "optimizer.kind=sgd", f"optimizer.lr={lr}", f"train.steps={STEPS}",
                    "train.deterministic=true", f"debug.dump_steps=[1,{STEPS}]")
            dumps = [self.trained(name, ranks, *sets) / "dump" for ranks in RANKS]
            for step in (1, STEPS):
                first, *others = [load_file(dump / f"step-{step}" / "gradients.safetensors") for dump in dumps]
                largest = max(np.abs(each).max() for each in first.values())
                for other in others:
                    self.assertEqual(set(other), set(first))
                    for tensor, gradient in first.items():
                        self.assertLessEqual(np.abs(other[tensor] - gradient).max(),
                                             TAU * np.abs(gradient).max() + 1e-14 * largest, f"{name}, step {step}: {tensor}")


if __name__ == "__main__":
    unittest.main()
