"""A network from Python on a table of real data: trained on two ranks, evaluated, and read back in Python.

Run with pytest, in an environment with PyTorch, scikit-learn and pyarrow.
"""

import csv
import json
import unittest

import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.datasets
import torch
from torch import nn

from command import CommandTest

RECIPE = """
name = "small"
[model]
kind = "torchscript"
path = "net.pt"
inputs = { x = { shape = [30] } }
targets = { y = { classes = 2 } }
[data]
kind = "table"
files = ["cancer.parquet"]
held_out_fraction = 0.2
[data.columns]
diagnosis = { as = "label" }
"*" = { as = "number", normalise = "standard" }
[train]
steps = 200
global_batch_size = 32
micro_batch_size = 16
precision = "fp32"
evaluate_every_steps = 100
metrics = ["accuracy", "auc"]
[optimizer]
lr = 0.003
[observe]
tensorboard = false
"""


class ScriptOnATable(CommandTest):
    def test_trains_and_comes_back(self):
        data = sklearn.datasets.load_breast_cancer()
        table = {name.replace(" ", "_"): data.data[:, i] for i, name in enumerate(data.feature_names)}
        table["diagnosis"] = [data.target_names[each] for each in data.target]
        pq.write_table(pa.table(table), self.folder / "cancer.parquet", row_group_size=100)
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        torch.jit.script(net).save(self.folder / "net.pt")
        (self.folder / "recipe.toml").write_text(RECIPE)
        self.succeeds(self.train(ranks=2))
        found = json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--json")).out)
        self.assertGreater(found["accuracy"], 0.94)
        self.assertGreater(found["auc"], 0.98)
        self.succeeds(self.troika("predict", self.run_folder, "--out", "rows.csv"))
        rows = list(csv.DictReader((self.folder / "rows.csv").open()))
        self.assertEqual(len(rows), found["samples"])
        trained = torch.jit.load(self.run_folder / "model.pt").state_dict()
        self.assertEqual(set(trained), set(net.state_dict()))
        self.assertFalse(torch.equal(trained["0.weight"], net.state_dict()["0.weight"]))


if __name__ == "__main__":
    unittest.main()
