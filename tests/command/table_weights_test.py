"""What samples of a table weigh, and classes that come equally often: numpy judges losses and batches, on 1, 2 and 4 ranks.

Run with pytest, in an environment with pyarrow and safetensors.
"""

import json
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from command import CommandTest

USAGE, DATA = 2, 3
ROWS, BATCH = 120, 16
RECIPE = f"""
name = "small"
[model]
kind = "mlp"
hidden_dims = []
[data]
kind = "table"
files = ["data/*.parquet"]
held_out_fraction = 0.2
[data.columns]
"x*" = {{ as = "number" }}
w = {{ as = "weight" }}
y = {{ as = "label" }}
[train]
steps = 8
global_batch_size = {BATCH}
micro_batch_size = 3
precision = "fp64"
deterministic = true
grad_clip = 0
evaluate_every_steps = 8
evaluation_samples = "all"
[optimizer]
kind = "sgd"
lr = 0.1
warmup_steps = 0
[debug]
dump_steps = [1, 2, 3, 4, 5, 6, 7, 8]
[observe]
tensorboard = false
"""


def example(rows=ROWS, seed=1):
    """Mostly of one class; some rows weigh nothing."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 2))
    y = np.where(np.arange(rows) % 10 == 3, 1, 0)
    return {"x0": x[:, 0], "x1": x[:, 1], "w": random.choice([0.0, 0.5, 1.0, 3.0], rows), "y": y}


def losses_of(kind, outputs, targets):
    """A loss a sample."""
    if kind == "cross_entropy":
        shifted = outputs - outputs.max(1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return -logs[np.arange(len(logs)), targets]
    if kind == "binary_cross_entropy":
        return (np.logaddexp(0, outputs) - targets * outputs).mean(1)
    return ((outputs - targets) ** 2).mean(1)


class TableRun(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        (self.folder / "recipe.toml").write_text(RECIPE)
        pq.write_table(pa.table(example()), self.folder / "data/a.parquet", row_group_size=25)

    def dumped(self, step, what="batch"):
        return load_file(self.run_folder / "dump" / f"step-{step}" / f"{what}.safetensors")


class Weights(TableRun):
    def test_every_loss_is_the_weighted_mean_on_any_number_of_ranks(self):
        for loss in ("cross_entropy", "binary_cross_entropy", "mean_square"):
            runs = {}
            for ranks in (1, 2, 4):
                self.succeeds(self.train(f"model.loss={loss}", ranks=ranks, flags=["--overwrite"]))
                runs[ranks] = self.losses() + [self.metrics()[-1]["held_out_loss"]]
                np.testing.assert_allclose(runs[ranks], runs[1], rtol=1e-12, err_msg=f"{loss} on {ranks} ranks")
            for step in (1, 8):
                batch, parameters = self.dumped(step), self.dumped(step, "parameters")
                outputs = batch["features"].astype(np.float64) @ parameters["layers.0.weight"].T + parameters["layers.0.bias"]
                expected = np.average(losses_of(loss, outputs, batch["targets"]), weights=batch["sample_weights"])
                self.assertAlmostEqual(runs[1][step - 1], expected, delta=1e-12, msg=loss)

    def test_evaluate_weighs_and_predict_does_not_ask(self):
        self.succeeds(self.train())
        held_out = self.metrics()[-1]["held_out_loss"]
        found = json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--json")).out)
        self.assertAlmostEqual(found["loss"], held_out, delta=1e-12)
        table = example(20, seed=5)
        del table["w"], table["y"]
        pq.write_table(pa.table(table), self.folder / "new.parquet")
        self.succeeds(self.troika("predict", self.run_folder, "--data", "new.parquet", "--out", "out.csv"))

    def test_bad_weights(self):
        table = example()
        table["w"][7] = -1
        pq.write_table(pa.table(table), self.folder / "data/a.parquet")
        self.fails(self.train("data.held_out_fraction=0", ranks=2), DATA, "row 7: the column 'w' is -1.0; a sample weighs 0 or more")
        words = {**example(), "w": ["heavy"] * ROWS}
        pq.write_table(pa.table(words), self.folder / "data/a.parquet")
        self.fails(self.train(), DATA, "the column 'w' of 'data/a.parquet' is string; as = \"weight\" expects numbers from 0 on")

    def test_a_batch_that_weighs_nothing_is_skipped(self):
        pq.write_table(pa.table({**example(), "w": np.zeros(ROWS)}), self.folder / "data/a.parquet")
        done = self.succeeds(self.train("data.held_out_fraction=0", "train.evaluate_every_steps=0"))
        self.assertIn("none of its targets counts", done.out + done.err)


class Balance(TableRun):
    def batches(self, *sets, ranks=1):
        self.succeeds(self.train("data.balance_classes=true", *sets, ranks=ranks, flags=["--overwrite"]))
        return [self.dumped(step) for step in range(1, 9)]

    def test_classes_come_equally_often_on_any_number_of_ranks(self):
        first = self.batches()
        for batch in first:
            self.assertEqual(batch["targets"].sum(), BATCH // 2)
        losses = self.losses()
        for ranks in (2, 4):
            for one, other in zip(first, self.batches(ranks=ranks)):
                for name, values in one.items():
                    np.testing.assert_array_equal(values, other[name], err_msg=name)
            np.testing.assert_allclose(self.losses(), losses, rtol=1e-12)
        seeded = self.batches("seed=5")
        self.assertFalse(np.array_equal(first[0]["features"], seeded[0]["features"]))

    def test_a_regression_has_no_classes(self):
        self.fails(self.train("data.balance_classes=true", "model.loss=mean_square"), USAGE, "balance_classes: 'targets' has no classes")


if __name__ == "__main__":
    unittest.main()
