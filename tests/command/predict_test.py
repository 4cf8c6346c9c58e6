"""`troika evaluate` and `troika predict`: the numbers of the run, and PyTorch's for the same samples.

Run with pytest, in an environment with PyTorch.
"""

import csv
import json
import unittest

import torch
from safetensors.torch import load_file
from torch import nn

from command import CommandTest

USAGE, DATA = 2, 3
RECIPE = """
name = "small"
[model]
kind = "mlp"
input_dim = 6
hidden_dims = [8]
output_dim = 3
[data]
kind = "random"
held_out_fraction = 0.1
[train]
steps = 20
global_batch_size = 16
micro_batch_size = 4
precision = "fp64"
evaluate_every_steps = 10
metrics = ["accuracy", "f1"]
best_metric = "accuracy"
[optimizer]
kind = "sgd"
lr = 0.1
warmup_steps = 0
[observe]
tensorboard = false
"""


class Predict(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def trained(self, *sets, ranks=1):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        return self.run_folder

    def evaluated(self, *flags):
        return json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--json", *flags)).out)

    def predicted(self, *flags, name="out.csv"):
        self.succeeds(self.troika("predict", self.run_folder, "--out", name, *flags))
        return self.folder / name

    def test_evaluates_as_the_run_did(self):
        for sets in ((), ("model.loss=mean_square", "train.metrics=[\"rmse\"]", "train.best_metric=rmse")):
            for ranks in (1, 2):
                self.trained(*sets, ranks=ranks)
                last = self.metrics()[-1]
                samples = 64
                found = self.evaluated("--samples", samples)
                self.assertEqual(found.pop("samples"), samples)
                self.assertAlmostEqual(found.pop("loss"), last["held_out_loss"], delta=1e-12)
                for name, value in found.items():
                    self.assertAlmostEqual(value, last[f"held_out_{name}"], delta=1e-12, msg=name)

    def test_predicts_classes_and_their_probabilities(self):
        self.trained()
        rows = list(csv.DictReader(self.predicted("--samples", 50).open()))
        self.assertEqual(len(rows), 50)
        self.assertEqual(list(rows[0]), ["sample", "class", "probability_0", "probability_1", "probability_2"])
        tensors = load_file(self.predicted("--samples", 50, name="out.safetensors"))
        for i, row in enumerate(rows):
            own = [float(row[f"probability_{k}"]) for k in range(3)]
            self.assertAlmostEqual(sum(own), 1, delta=1e-12)
            self.assertEqual(int(row["class"]), max(range(3), key=own.__getitem__))
            self.assertEqual(own, tensors["probability"][i].tolist())
            self.assertEqual(int(row["sample"]), int(tensors["sample"][i]))

    def test_predicts_answers_and_values(self):
        for loss, column in (("binary_cross_entropy", "probability"), ("mean_square", "value")):
            self.trained(f"model.loss={loss}", "train.metrics=[]", "train.best_metric=loss")
            tensors = load_file(self.predicted("--samples", 10, name="out.safetensors"))
            self.assertEqual(set(tensors), {"sample", column})
            self.assertEqual(tensors[column].shape, (10, 3))

    def test_takes_the_best_model(self):
        self.trained()
        best, last = (load_file(self.run_folder / f"{name}.safetensors") for name in ("best", "model"))
        self.assertEqual(torch.equal(best["layers.0.weight"], last["layers.0.weight"]),
                         self.evaluated("--best", "--samples", 64) == self.evaluated("--samples", 64))

    def test_a_run_folder_is_all_that_a_script_needs(self):
        net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
        torch.jit.script(net).save(self.folder / "net.pt")
        recipe = RECIPE[RECIPE.index("[data]"):]
        (self.folder / "recipe.toml").write_text("""
name = "small"
[model]
kind = "torchscript"
path = "net.pt"
inputs = { features = { shape = [6] } }
targets = { y = { classes = 3 } }
""" + recipe)
        self.trained(ranks=2)
        expected = self.evaluated("--samples", 64)
        (self.folder / "net.pt").unlink()
        self.assertEqual(self.evaluated("--samples", 64), expected)
        self.assertAlmostEqual(expected["loss"], self.metrics()[-1]["held_out_loss"], delta=1e-12)

    def test_says_and_takes_the_precision(self):
        done = self.succeeds(self.train("train.precision=bf16", flags=["--overwrite"]))
        self.assertIn(" parameters, bf16, pipeline 1", done.err)
        narrow, wide = self.evaluated()["loss"], self.evaluated("--set", "train.precision=fp32")["loss"]
        self.assertNotEqual(narrow, wide)
        self.assertAlmostEqual(narrow, wide, delta=0.02)
        self.assertNotEqual(self.predicted("--set", "train.precision=fp32").read_text(), self.predicted(name="narrow.csv").read_text())

    def refused(self, status, needle, *words):
        done = self.troika(*words)
        self.assertEqual(done.status, status, str(done))
        self.assertIn(needle, done.err)

    def test_names_what_is_wrong(self):
        self.trained()
        run = self.run_folder
        self.refused(USAGE, ".csv, .parquet or .safetensors", "predict", run, "--out", "rows.txt", "--samples", 1)
        self.refused(USAGE, "never ends", "evaluate", run, "--side", "train")
        self.refused(USAGE, "held_out_fraction", "evaluate", run, "--set", "data.held_out_fracton=0")
        self.refused(DATA, "is no run folder", "evaluate", self.folder / "runs")
        self.refused(USAGE, "--set model.hidden_dims: the model is trained", "evaluate", run, "--set", "model.hidden_dims=[4]")
        self.refused(USAGE, "--set train.device: the model is trained", "predict", run, "--out", "rows.csv", "--set", "train.device=cuda")
        (run / "model.safetensors").unlink()
        self.refused(DATA, "model.safetensors' is missing", "evaluate", run)
        self.assertFalse((self.folder / "rows.txt").exists())


if __name__ == "__main__":
    unittest.main()
