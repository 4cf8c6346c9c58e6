"""Other tables for a trained model: encoded as training did it, with numpy as the judge of every prediction.

Run with pytest, in an environment with pyarrow and safetensors.
"""

import csv
import json
import os
import subprocess
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from command import CommandTest, variables_of

USAGE, DATA = 2, 3
LANDS = ("DE", "FR", "IT")
RECIPE = """
name = "small"
[model]
kind = "mlp"
hidden_dims = [8]
activation = "relu"
[data]
kind = "table"
files = ["train.parquet"]
held_out_fraction = 0.2
filter = [["day", "<", 900]]
[data.columns]
land = { as = "category", missing = "zero" }
a = { as = "number", normalise = "standard", missing = "mean" }
b = { as = "number", normalise = "min_max" }
y = { as = "label" }
[train]
steps = 30
global_batch_size = 32
micro_batch_size = 16
precision = "fp64"
evaluate_every_steps = 30
evaluation_samples = "all"
metrics = ["accuracy"]
[optimizer]
kind = "sgd"
lr = 0.3
warmup_steps = 0
[observe]
tensorboard = false
"""


def example(rows, seed, lands=LANDS):
    random = np.random.default_rng(seed)
    a, b, land = random.normal(5, 2, rows), random.uniform(-1, 3, rows), random.choice(lands, rows)
    y = np.where(a + b + (land == "FR") > 6, "yes, please", "no")
    return {"a": a, "b": b, "land": land.tolist(), "day": np.arange(rows), "y": y.tolist()}


class TablePredict(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def write(self, columns, name):
        pq.write_table(pa.table(columns), self.folder / name, row_group_size=70)

    def trained(self, *sets, columns=None):
        self.write(columns or example(300, 1), "train.parquet")
        self.succeeds(self.train(*sets, ranks=2, flags=["--overwrite"]))
        self.columns = {each["name"]: each for each in json.loads((self.run_folder / "data.json").read_text())["columns"]}
        self.model = load_file(self.run_folder / "model.safetensors")

    def expected(self, table):
        """The probabilities that the model gives for a table, with the statistics of its training."""
        a, b, land = (self.columns[name] for name in ("a", "b", "land"))
        words = [[float(word == each) for each in land["words"]] for word in table["land"]]
        numbers = [np.where(np.isnan(np.array(table[each["name"]], float)), each.get("mean", 0), table[each["name"]]) for each in (a, b)]
        x = np.column_stack([words] + [(n.astype(float) - each["shift"]) * each["scale"] for n, each in zip(numbers, (a, b))])
        hidden = np.maximum(x @ self.model["layers.0.weight"].T + self.model["layers.0.bias"], 0)
        logits = hidden @ self.model["layers.1.weight"].T + self.model["layers.1.bias"]
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exp / exp.sum(axis=1, keepdims=True)

    def predicted(self, *flags, name="out.parquet"):
        done = self.succeeds(self.troika("predict", self.run_folder, "--out", name, *flags))
        return done, pq.read_table(self.folder / name).to_pydict() if name.endswith("parquet") else None

    def declined(self, done, status, *parts):
        self.assertEqual(done.status, status, str(done))
        for part in parts:
            self.assertIn(part, done.err)


class OtherTables(TablePredict):
    def test_columns_go_by_name_and_by_the_numbers_of_training(self):
        self.trained()
        (self.folder / "train.parquet").unlink()  # the run's folder is all that it takes
        other = example(200, 7, lands=("IT", "FR"))
        other["a"] = [None if i % 10 == 0 else value + 3 for i, value in enumerate(other["a"])]
        filled = {**other, "a": [np.nan if value is None else value for value in other["a"]]}
        self.write({"extra": np.arange(200), "b": other["b"].astype(np.float32), "a": other["a"], "land": other["land"]}, "new.parquet")
        filled["b"] = other["b"].astype(np.float32).astype(float)
        done, found = self.predicted("--data", "new.parquet")
        self.assertNotIn("warning", done.err)
        self.assertEqual(list(found), ["row", "class", "probability_no", "probability_yes, please"])
        self.assertEqual(found["row"], list(range(200)))
        expected = self.expected(filled)
        np.testing.assert_allclose(np.column_stack(list(found.values())[2:]), expected, rtol=1e-5, atol=1e-9)
        self.assertEqual(found["class"], [("no", "yes, please")[each] for each in expected.argmax(1)])

    def test_all_endings_hold_the_same(self):
        self.trained()
        _, table = self.predicted("--side", "train")
        self.predicted("--side", "train", name="out.csv")
        self.predicted("--side", "train", name="out.safetensors")
        rows = list(csv.DictReader((self.folder / "out.csv").open()))
        self.assertEqual([row["class"] for row in rows], table["class"])
        self.assertEqual([int(row["row"]) for row in rows], table["row"])
        self.assertEqual([float(row["probability_yes, please"]) for row in rows], table["probability_yes, please"])
        tensors = load_file(self.folder / "out.safetensors")
        self.assertEqual(tensors["row"].tolist(), table["row"])
        self.assertEqual(tensors["probability"][:, 1].tolist(), table["probability_yes, please"])
        self.assertEqual([("no", "yes, please")[each] for each in tensors["class"]], table["class"])
        held_out = self.predicted()[1]["row"]
        self.assertEqual(held_out, sorted(held_out))
        self.assertEqual(sorted(held_out + table["row"]), list(range(300)))

    def test_evaluates_by_the_statistics_of_training(self):
        self.trained()
        other = example(120, 9)
        other["a"] += 4
        self.write(other, "new.parquet")
        found = json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--data", "new.parquet", "--json")).out)
        expected = self.expected({**other, "a": other["a"]})
        labels = np.array([("no", "yes, please").index(each) for each in other["y"]])
        self.assertEqual(found["samples"], 120)
        self.assertAlmostEqual(found["loss"], -np.log(expected[np.arange(120), labels]).mean(), delta=1e-6)
        self.assertAlmostEqual(found["accuracy"], (expected.argmax(1) == labels).mean(), delta=1e-12)
        last = self.metrics()[-1]
        again = json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--json")).out)
        self.assertAlmostEqual(again["loss"], last["held_out_loss"], delta=1e-12)

    def test_unknown_words_are_told(self):
        self.trained()
        other = example(90, 3)
        other["land"] = ["PL" if i % 3 == 0 else land for i, land in enumerate(other["land"])]
        self.write(other, "new.parquet")
        done, found = self.predicted("--data", "new.parquet")
        self.assertIn("warning: 30 rows with a word in 'land' that was not there in training, the first 'PL'", done.err)
        self.assertEqual(done.err.count("warning: "), 1)
        np.testing.assert_allclose(found["probability_no"], self.expected(other)[:, 0], rtol=1e-5)

    def test_values_have_the_names_of_their_columns(self):
        columns = {**example(200, 1), "z": np.arange(200.0), "y": np.arange(200.0) / 7}
        self.trained("model.loss=mean_square", "train.metrics=[]", "optimizer.lr=1e-5", "data.columns.y.as=label",
                     'data.columns={a={as="number"},z={as="label"},y={as="label"}}', columns=columns)
        _, found = self.predicted("--data", "train.parquet")
        self.assertEqual(list(found), ["row", "value_z", "value_y"])

    def refused(self, *needles, command="predict", flags=()):
        out = ("--out", "out.parquet") if command == "predict" else ()
        done = self.troika(command, self.run_folder, "--data", "new.parquet", *out, *flags)
        self.assertEqual(done.status, DATA, str(done))
        self.assertEqual(len(done.error_lines), 2, str(done))  # one line, and a hint
        for needle in needles:
            self.assertIn(needle, done.err)
        self.assertFalse((self.folder / "out.parquet").exists())

    def test_what_does_not_go_with_the_training(self):
        self.trained()
        table = example(50, 3)
        self.write({name: column for name, column in table.items() if name != "b"}, "new.parquet")
        self.refused("there is no column 'b' in 'new.parquet'", "its columns are a, land, day, y")
        self.write({**table, "a": [str(value) for value in table["a"]]}, "new.parquet")
        self.refused("the column 'a' of 'new.parquet' is string; the model has learned it as double")
        self.write({**table, "land": np.arange(50) % 2 == 0}, "new.parquet")
        self.refused("the column 'land' of 'new.parquet' is bool; the model has learned it as string")
        self.write({**table, "b": [None] * 3 + list(table["b"][3:])}, "new.parquet")
        self.refused("row group 0, row 0: the column 'b' has no value", "--set data.on_bad_row=skip")
        done, found = self.predicted("--data", "new.parquet", "--set", "data.on_bad_row=skip")
        self.assertIn("3 bad rows left out", done.err)
        self.assertEqual(found["row"], list(range(3, 50)))
        self.write({**table, "y": ["maybe"] * 50}, "new.parquet")
        (self.folder / "out.parquet").unlink()
        self.refused("the column 'y' is 'maybe'", command="evaluate")
        self.predicted("--data", "new.parquet")
        (self.folder / "out.parquet").unlink()
        self.write({name: column for name, column in table.items() if name != "y"}, "new.parquet")
        self.refused("there is no column 'y'", command="evaluate")

    def test_what_predictions_are_made_from_stays(self):
        """By whatever name: another path, a link, a hard link; and what the run was trained on."""
        self.trained()
        self.write(example(50, 3), "new.parquet")
        (self.folder / "soft.parquet").symlink_to("new.parquet")
        os.link(self.folder / "new.parquet", self.folder / "hard.parquet")
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        for data, out, named in (
                ("new.parquet", "new.parquet", "the data file 'new.parquet'"),
                ("new.parquet", "./runs/../new.parquet", "the data file 'new.parquet'"),
                ("new.parquet", "soft.parquet", "the data file 'new.parquet'"),
                ("new.parquet", "hard.parquet", "the data file 'new.parquet'"),
                ("soft.parquet", "new.parquet", "the data file 'soft.parquet'"),
                (None, "train.parquet", "the data file 'train.parquet'"),
                ("new.parquet", "runs/small/model.safetensors", "model.safetensors'")):
            done = self.troika("predict", self.run_folder, *(("--data", data) if data else ()), "--out", out)
            self.declined(done, 2, f"--out '{out}' is the ", named, "which it would replace", "to another file")
        self.assertEqual({path: path.read_bytes() for path in before}, before)

    def test_other_kinds_take_no_files(self):
        (self.folder / "recipe.toml").write_text(RECIPE[:RECIPE.index("files = ")].replace('"table"', '"random"').replace(
            "hidden_dims", "input_dim = 3\noutput_dim = 2\nhidden_dims") + RECIPE[RECIPE.index("[train]"):])
        self.succeeds(self.train())
        done = self.troika("predict", self.run_folder, "--data", "new.parquet", "--out", "out.csv")
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("data.kind = 'random' takes no other files", done.err)


class Memory(TablePredict):
    def peak(self, rows, name):
        """The largest memory of a prediction, in MB."""
        self.write({"a": np.arange(rows) % 97 / 97.0}, "new.parquet")
        command = [os.environ["TROIKA"], "predict", self.run_folder, "--data", "new.parquet", "--out", name]
        process = subprocess.Popen(command, cwd=self.folder, env=variables_of({}), stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss / 1024

    def test_does_not_grow_with_the_rows(self):
        """Five million numbers are 40 MB, and 100 MB as text."""
        self.trained("model.output_dim=50", 'data.columns={a={as="number"},y={as="label"}}',
                     columns={"a": np.arange(300) / 300, "y": np.arange(300) % 50, "day": np.zeros(300)})
        for name in ("out.csv", "out.safetensors"):
            self.assertLess(self.peak(100_000, name) - self.peak(1_000, name), 20, name)
        first, more = (self.peak(rows, "out.parquet") for rows in (65_536, 4 * 65_536))
        self.assertLess(more - first, 40)
        self.assertEqual(pq.ParquetFile(self.folder / "out.parquet").num_row_groups, 4)


if __name__ == "__main__":
    unittest.main()
