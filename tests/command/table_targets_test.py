"""Targets from tables: values in their own unit, numbers that name classes, lists, and gaps. numpy and PyTorch judge.

Run with pytest, in an environment with PyTorch, pyarrow and safetensors.
"""

import json
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from command import CommandTest

USAGE, DATA = 2, 3
ROWS, LENGTH, WORDS = 200, 5, 7
RECIPE = """
name = "small"
[model]
kind = "mlp"
hidden_dims = []
[data]
kind = "table"
files = ["train.parquet"]
held_out_fraction = 0.2
[data.columns]
"x*" = { as = "number" }
y = { as = "label" }
[train]
steps = 60
global_batch_size = 32
micro_batch_size = 16
precision = "fp64"
evaluate_every_steps = 60
evaluation_samples = "all"
[optimizer]
kind = "sgd"
lr = 0.2
weight_decay = 0
warmup_steps = 0
[debug]
dump_steps = [1]
[observe]
tensorboard = false
"""
LISTS = """
kind = "torchscript"
path = "net.pt"
targets = { y = { shape = [5], dtype = "int64", classes = 7 } }
inputs = { ids = { shape = [5], dtype = "int64", classes = 7 } }
"""


class Tagger(nn.Module):
    """Gives each token a class."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS)

    def forward(self, ids):
        return self.head(self.table(ids))


class TableTargets(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)
        self.random = np.random.default_rng(1)
        self.x = self.random.normal(size=(ROWS, 2))

    def write(self, **columns):
        pq.write_table(pa.table({"x0": self.x[:, 0], "x1": self.x[:, 1], **columns}), self.folder / "train.parquet", row_group_size=70)

    def trains(self, *sets, ranks=1):
        return self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))

    def predicted(self, *flags):
        self.succeeds(self.troika("predict", self.run_folder, "--out", "out.parquet", *flags))
        return pq.read_table(self.folder / "out.parquet").to_pydict()

    def evaluated(self, *flags):
        return json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--json", *flags)).out)

    def batch(self):
        return load_file(self.run_folder / "dump" / "step-1" / "batch.safetensors")


class Values(TableTargets):
    def test_values_are_judged_in_their_own_unit(self):
        price = 200_000 + 50_000 * self.x[:, 0] + self.random.normal(0, 1000, ROWS)
        self.write(price=price)
        for normalise in ("standard", "min_max"):
            columns = f'data.columns={{"x*"={{as="number"}},price={{as="label",normalise="{normalise}"}}}}'
            losses = []
            for ranks in (1, 2):
                self.trains(columns, "model.loss=mean_square", "train.metrics=['rmse']", "train.steps=200", ranks=ranks)
                losses.append(self.losses())
            np.testing.assert_allclose(*losses, rtol=1e-9, atol=1e-14)
            learned = json.loads((self.run_folder / "data.json").read_text())["columns"][-1]
            self.assertEqual(learned["normalise"], normalise)
            found = self.predicted()
            errors = np.array(found["value_price"]) - price[found["row"]]
            rmse = np.sqrt(np.mean(errors ** 2))
            self.assertLess(rmse, 3000)
            np.testing.assert_allclose(self.metrics()[-1]["held_out_rmse"], rmse, rtol=1e-4)  # labels are fp32
            again = self.evaluated()
            np.testing.assert_allclose(again["rmse"], rmse, rtol=1e-4)
            np.testing.assert_allclose(again["loss"], np.mean((errors * learned["scale"]) ** 2), rtol=1e-4)
            other = self.evaluated("--data", "train.parquet")
            everything = self.predicted("--data", "train.parquet")
            np.testing.assert_allclose(other["rmse"], np.sqrt(np.mean((np.array(everything["value_price"]) - price) ** 2)), rtol=1e-4)

    def test_lists_of_values(self):
        pairs = np.column_stack([self.x[:, 0] + 1, self.x[:, 1] - 1])
        self.write(y=[list(each) for each in pairs])
        self.trains("model.loss=mean_square", "train.metrics=['rmse']", "train.steps=150", "optimizer.lr=0.5")
        first = self.losses()
        self.trains("model.loss=mean_square", 'data.columns={"x*"={as="number"},y={as="tensor",into="targets"}}', "train.steps=150", "optimizer.lr=0.5")
        self.assertEqual(self.losses(), first)
        found = self.predicted("--data", "train.parquet")
        self.assertEqual(list(found), ["row", "value_0", "value_1"])
        np.testing.assert_allclose(np.column_stack([found["value_0"], found["value_1"]]), pairs, atol=0.1)

    def test_answers_that_are_not_known(self):
        answers = [[float(value) if self.random.random() > 0.3 else None for value in row > 0] for row in self.x]
        columns = 'data.columns={"x*"={as="number"},y={as="label",missing="ignore"},z={as="label",missing="ignore"}}'
        self.write(y=[a for a, _ in answers], z=[b for _, b in answers])
        found = self.train("model.loss=binary_cross_entropy", 'data.columns={"x*"={as="number"},y={as="label"},z={as="label"}}')
        self.fails(found, DATA, "has no value", '"ignore" such targets')
        losses = []
        for ranks in (1, 2):
            self.trains(columns, "model.loss=binary_cross_entropy", "train.metrics=['accuracy','auc']", "optimizer.lr=1", ranks=ranks)
            losses.append(self.losses())
        np.testing.assert_allclose(*losses, rtol=1e-12)
        self.assertGreater(self.metrics()[-1]["held_out_accuracy"], 0.9)
        evaluated, found = self.evaluated("--data", "train.parquet"), self.predicted("--data", "train.parquet")
        p = np.column_stack([found["probability_y"], found["probability_z"]])
        y = np.array([[np.nan if value is None else value for value in row] for row in answers])
        self.assertAlmostEqual(evaluated["loss"], -np.nanmean(np.where(y > 0, np.log(p), np.log(1 - p)) + 0 * y), delta=1e-6)


class Classes(TableTargets):
    def test_classes_that_are_not_known(self):
        """The loss is the mean over those that are: with weights of 1, which count themselves, it is the same."""
        known = self.random.random(len(self.x)) > 0.4
        self.write(y=[int(value) if there else None for value, there in zip((self.x > 0).sum(1), known)])
        columns = 'data.columns={"x*"={as="number"},y={as="label",missing="ignore"}}'
        losses = []
        for ranks, weights in ((1, []), (1, [1, 1, 1]), (2, [])):
            self.trains(columns, f"loss.class_weights={weights}", ranks=ranks)
            losses.append(self.losses())
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
        np.testing.assert_allclose(losses[2], losses[0], rtol=1e-6)
        self.assertLess(self.metrics()[0]["tokens"], 32)
        found = self.predicted("--data", "train.parquet")
        p = np.column_stack([found[f"probability_{k}"] for k in range(3)])
        expected = -np.log(p[np.arange(len(p)), (self.x > 0).sum(1)])[known].mean()
        self.assertAlmostEqual(self.evaluated("--data", "train.parquet")["loss"], expected, delta=1e-6)

    def test_numbers_name_classes(self):
        label = np.array([100, 300, -5])[(self.x > 0).sum(1)]
        self.write(y=label)
        self.trains("train.metrics=['accuracy']", ranks=2)
        self.assertIn("output_dim = 3\n", (self.run_folder / "recipe.toml").read_text())
        found = self.predicted("--data", "train.parquet")
        self.assertEqual(list(found), ["row", "class", "probability_-5", "probability_100", "probability_300"])
        right = np.mean([int(each) for each in found["class"]] == label)
        self.assertAlmostEqual(self.evaluated("--data", "train.parquet")["accuracy"], right)
        self.assertGreater(right, 0.6)

    def tagged(self):
        torch.manual_seed(1)
        net = Tagger()
        torch.jit.script(net).save(self.folder / "net.pt")
        recipe = RECIPE.replace('kind = "mlp"\nhidden_dims = []\n', LISTS)
        (self.folder / "recipe.toml").write_text(recipe)
        return net

    def test_a_class_for_each_token(self):
        net = self.tagged()
        ids = self.random.integers(0, WORDS, (ROWS, LENGTH))
        tags = np.where(self.random.random((ROWS, LENGTH)) < 0.2, -100, (ids + 1) % WORDS)
        gaps = [[None if tag == -100 else int(tag) for tag in row] for row in tags]
        plain = [row.tolist() for row in tags]
        losses = []
        for values, how, ranks in ((plain, 'as="tensor",into="y"', 1), (plain, 'as="label"', 2), (gaps, 'as="label",missing="ignore"', 1)):
            self.write(ids=[row.tolist() for row in ids], tags=values)
            self.trains(f'data.columns={{ids={{as="tensor"}},tags={{{how}}}}}', "train.metrics=['accuracy']", ranks=ranks)
            losses.append(self.losses())
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)
        np.testing.assert_array_equal(losses[0], losses[2])
        batch = self.batch()
        logits = net.double()(torch.from_numpy(batch["ids"]))
        expected = functional.cross_entropy(logits.movedim(-1, 1), torch.from_numpy(batch["y"]))
        self.assertIn(-100, batch["y"])
        self.assertAlmostEqual(losses[2][0], expected.item(), delta=1e-10)
        self.assertGreater(self.metrics()[-1]["held_out_accuracy"], 0.9)
        found = self.predicted("--data", "train.parquet")
        self.assertEqual(list(found), ["row", *(f"class_{i}" for i in range(LENGTH))])

    def test_lists_that_are_no_classes(self):
        self.tagged()
        columns = 'data.columns={ids={as="tensor"},tags={as="label"}}'
        ids = [[0, 1, 2, 3, 4]] * ROWS
        for tags, what in (([[0, 1, 2, 3, 9]] * ROWS, "is 9.0; 'y' takes whole numbers from 0 to 6"),
                           ([[0, 1, 2, 3, -1]] * ROWS, "has the element -1.0; a class is a whole number from 0 on"),
                           ([[0, 1, 2, 3, None]] * ROWS, "has an element that is NaN or without a value")):
            self.write(ids=ids, tags=pa.array(tags))
            self.fails(self.train(columns, flags=["--overwrite"]), DATA, "the column 'tags'", what)


if __name__ == "__main__":
    unittest.main()
