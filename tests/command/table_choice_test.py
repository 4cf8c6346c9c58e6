"""What a trained model predicts on and what stands beside it: sides of a table, filters, kept columns, the likeliest classes.

Run with pytest, in an environment with pyarrow and safetensors.
"""

import csv
import json
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from table_predict_test import DATA, LANDS, USAGE, TablePredict, example


class Kept(TablePredict):
    def table(self, rows=300):
        table = example(rows, 1)
        table["id"] = [None if i % 7 == 0 else f"row, {i}" for i in range(rows)]
        table["n"] = pa.array([None if i % 5 == 0 else i * 10**15 for i in range(rows)])
        table["x"] = pa.array([None if i % 11 == 0 else i / 3 for i in range(rows)])
        table["flag"] = [i % 2 == 0 for i in range(rows)]
        return table

    def test_columns_stand_beside_predictions(self):
        table = self.table()
        self.trained(columns=table)
        _, found = self.predicted("--side", "train", "--keep", "id,n", "--keep", "x,flag")
        self.assertEqual(list(found)[:6], ["row", "id", "n", "x", "flag", "class"])
        expected = {name: pa.array(table[name]).to_pylist() for name in ("id", "n", "x", "flag")}
        expected["flag"] = [str(value).lower() for value in expected["flag"]]
        for name, values in expected.items():
            self.assertEqual(found[name], [values[row] for row in found["row"]], name)
        self.predicted("--side", "train", "--keep", "id,n,x,flag", name="out.csv")
        rows = list(csv.DictReader((self.folder / "out.csv").open()))
        self.assertEqual([row["class"] for row in rows], found["class"])
        for name, values in expected.items():
            kept = [None if row[name] == "" else type(values[1])(row[name]) for row in rows]
            self.assertEqual(kept, [values[row] for row in found["row"]], name)

    def test_of_several_files_with_rows_left_out(self):
        self.trained()
        for part in range(3):
            table = self.table(150)
            table["id"] = [f"{part}-{i}" for i in range(150)]
            table["b"] = [None if i % 4 == 0 else value for i, value in enumerate(table["b"])]
            self.write(table, f"new-{part}.parquet")
        _, found = self.predicted("--data", "new-*.parquet", "--set", "data.on_bad_row=skip", "--keep", "id")
        self.assertEqual(found["id"], [f"{part}-{i}" for part in range(3) for i in range(150) if i % 4 != 0])

    def test_what_cannot_be_kept(self):
        self.trained(columns={**self.table(), "class": np.zeros(300), "list": [[1.0]] * 300})
        for keep, out, *parts in (("di", "out.csv", DATA, "there is no column 'di'", "did you mean 'id'?"),
                                  ("list", "out.csv", DATA, "the column 'list' is list<", "--keep takes numbers, words and truth values"),
                                  ("class", "out.csv", USAGE, "two columns of the predictions would be called 'class'"),
                                  ("id,id", "out.csv", USAGE, "two columns of the predictions would be called 'id'"),
                                  ("id", "out.safetensors", USAGE, "--keep: a file of safetensors has numbers alone")):
            self.declined(self.troika("predict", self.run_folder, "--out", out, "--keep", keep), *parts)
            self.assertFalse((self.folder / out).exists())

    def test_the_likeliest_classes(self):
        columns = example(300, 1)
        self.trained('data.columns={land={as="label"},a={as="number"},b={as="number"}}', columns=columns)
        _, all_of_them = self.predicted()
        for ending in ("parquet", "csv"):
            self.predicted("--top", 2, name=f"top.{ending}")
        found = pq.read_table(self.folder / "top.parquet").to_pydict()
        self.assertEqual(list(found), ["row", "class_1", "probability_1", "class_2", "probability_2"])
        probabilities = np.column_stack([all_of_them[f"probability_{land}"] for land in LANDS])
        order = np.argsort(-probabilities, axis=1, kind="stable")
        for k in (0, 1):
            self.assertEqual(found[f"class_{k + 1}"], [LANDS[each] for each in order[:, k]])
            self.assertEqual(found[f"probability_{k + 1}"], np.take_along_axis(probabilities, order, 1)[:, k].tolist())
        rows = list(csv.DictReader((self.folder / "top.csv").open()))
        self.assertEqual([row["class_2"] for row in rows], found["class_2"])
        self.predicted("--top", 9)
        self.trained('data.columns={b={as="label"},a={as="number"}}', "model.loss=mean_square", "train.metrics=[]", columns=columns)
        done = self.troika("predict", self.run_folder, "--out", "out.csv", "--top", 2)
        self.declined(done, USAGE, "--top: the model does not give one class a sample")


class Sides(TablePredict):
    def rows(self, side):
        return self.predicted("--side", side)[1]["row"]

    def test_a_column_names_the_test_side(self):
        words = ("train", "Train", "VAL", "Test", "train", "validation", "TEST", "other")
        columns = {**example(240, 1), "side": [words[i % 8] for i in range(240)]}
        self.trained("data.split_column=side", "data.filter=[]", columns=columns)
        for side, numbers in (("train", (0, 1, 4)), ("held_out", (2, 5)), ("test", (3, 6))):
            self.assertEqual(self.rows(side), [i for i in range(240) if i % 8 in numbers])
        found = json.loads(self.succeeds(self.troika("evaluate", self.run_folder, "--side", "test", "--json")).out)
        labels = np.array([("no", "yes, please").index(each) for each in columns["y"]])[self.rows("test")]
        expected = self.expected({name: np.array(columns[name])[self.rows("test")] for name in ("a", "b", "land")})
        self.assertEqual(found["samples"], 60)
        self.assertAlmostEqual(found["loss"], -np.log(expected[np.arange(60), labels]).mean(), delta=1e-6)

    def test_a_fraction_is_the_test_side(self):
        columns = example(300, 1)
        self.trained("data.filter=[]", columns=columns)
        before = self.rows("held_out")
        self.declined(self.troika("evaluate", self.run_folder, "--side", "test"), DATA, "there are no samples on the test side",
                   "data.split_column, test_files or test_fraction")
        self.trained("data.filter=[]", "data.test_fraction=0.3", columns=columns)
        sides = [self.rows(side) for side in ("train", "held_out", "test")]
        self.assertEqual(sides[1], before)  # whatever the test side takes
        self.assertEqual(sorted(sum(sides, [])), list(range(300)))
        self.assertTrue(60 < len(sides[2]) < 120, len(sides[2]))
        self.trained("data.filter=[]", "data.test_fraction=0.3", "data.held_out_fraction=0", "train.evaluate_every_steps=0", "train.metrics=[]",
                     columns=columns)
        train, test = self.rows("train"), self.rows("test")
        self.assertEqual(sorted(train + test), list(range(300)))
        self.declined(self.troika("evaluate", self.run_folder, "--side", "held_out"), DATA, "no samples on the held-out side")

    def test_files_are_the_test_side(self):
        self.write(example(50, 4), "z-test.parquet")
        self.write(example(40, 3), "m-held.parquet")
        for sets, held_out in ((("data.held_out_files=['m-held.parquet']",), list(range(300, 340))), ((), None)):
            self.trained("data.filter=[]", "data.test_files=['z-test.parquet']", *sets)
            first = 340 if sets else 300
            self.assertEqual(self.rows("test"), list(range(first, first + 50)))
            if held_out:
                self.assertEqual(self.rows("held_out"), held_out)
            self.assertLess(max(self.rows("train")), 300)
        refused = self.train("data.test_files=['./train.parquet']", flags=["--overwrite"])
        self.declined(refused, DATA, "is in data.files and in data.test_files")
        refused = self.train("data.test_fraction=0.1", "data.split_column=side", flags=["--overwrite"])
        self.declined(refused, USAGE, "split_column names the test side")

    def test_a_filter_of_other_tables(self):
        self.trained()
        self.write(example(100, 4), "new.parquet")
        _, found = self.predicted("--data", "new.parquet", "--set", "data.filter=[['day','>=',60]]")
        self.assertEqual(found["row"], list(range(60, 100)))
        _, found = self.predicted("--data", "new.parquet")
        self.assertEqual(found["row"], list(range(100)))
        flags = ("--data", "new.parquet", "--out", "out.csv")
        self.declined(self.troika("predict", self.run_folder, *flags, "--set", "data.split_column=day"), USAGE,
                   "--set data.split_column chooses a side, and --data means all rows", "data.filter")
        self.declined(self.troika("predict", self.run_folder, *flags, "--side", "test"), USAGE, "--side test is a part of the run's data")


if __name__ == "__main__":
    unittest.main()
