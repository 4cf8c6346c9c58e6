"""Odd tables: each trains, or ends in one line that names what is wrong.

Run with pytest, in an environment with pyarrow and safetensors.
"""

import datetime
import decimal
import gzip
import json
import re
import shutil
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from command import ENDLESS, CommandTest, train_arguments, wait_until
from table_test import RECIPE

USAGE, DATA, STORAGE = 2, 3, 7
ROWS = 40
FILES, ROWS_OF_A_FILE = 20, 10_000
LARGE = ("data.held_out_fraction=0", "train.evaluate_every_steps=0", "train.global_batch_size=2048", "train.micro_batch_size=2048")


def table_of(**columns):
    """`a`, a label, and what a test adds."""
    return {"a": np.arange(float(ROWS)), **columns, "label": np.arange(ROWS) % 2}


def large():
    return {"a": np.arange(float(ROWS_OF_A_FILE)), "label": np.arange(ROWS_OF_A_FILE) % 2}


class OddTest(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def write(self, columns, name="a.parquet", **options):
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, self.folder / "data" / name, **options)

    def write_text(self, text, name="a.csv"):
        (self.folder / "data" / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def trains(self, *sets, csv=False):
        files = ["data.files=['data/*.csv']"] if csv else []
        return self.succeeds(self.train("train.steps=3", *files, *sets, flags=("--overwrite",)))

    def refused(self, *parts, sets=(), csv=False, status=DATA):
        files = ["data.files=['data/*.csv']"] if csv else []
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        self.fails(self.train(*files, *sets), status, *parts)


class Columns(OddTest):
    def test_types_that_are_numbers(self):
        self.write(table_of(whole=pa.array(np.arange(ROWS) % 3).dictionary_encode(), half=pa.array(np.arange(ROWS), pa.float16()),
                            big=pa.array([2**64 - 1 - i for i in range(ROWS)], pa.uint64()),
                            day=pa.array([datetime.date(2024, 1, 1)] * ROWS), at=pa.array([datetime.timedelta(seconds=i) for i in range(ROWS)])))
        self.trains()

    def test_whole_numbers_that_a_double_does_not_hold(self):
        for big, type in ((2**64 - 1, pa.uint64()), (decimal.Decimal(10**24 + 1), pa.decimal128(38, 0))):
            self.write(table_of(big=pa.array([big] * ROWS, type)))
            self.refused(f"the column 'big' is {big}, beyond 2^53", "write the column as text",
                         sets=['data.columns={big={as="category"},label={as="label"}}'])

    def test_types_that_are_words(self):
        words = [("x", "y", "z")[i % 3] for i in range(ROWS)]
        for type in (pa.string_view(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())):
            array = pa.array(words, pa.string()).cast(type) if type != pa.string_view() else pa.array(words, type)
            with pa.ipc.new_file(str(self.folder / "data/a.arrow"), pa.schema({"word": type, "label": pa.int64()})) as file:
                file.write_table(pa.table({"word": array, "label": np.arange(ROWS) % 2}, schema=pa.schema({"word": type, "label": pa.int64()})))
            self.trains("data.files=['data/a.arrow']", 'data.columns={word={as="category"},label={as="label"}}')

    def features_of(self, columns, table, name="a.arrow"):
        """Trains a step on all rows in one batch, and returns them in the order of the column `a`, which comes first."""
        for old in (self.folder / "data").iterdir():
            old.unlink()
        if name.endswith(".arrow"):
            with pa.ipc.new_file(str(self.folder / "data" / name), table.schema) as file:
                file.write_table(table)
        else:
            pq.write_table(table, self.folder / "data" / name)
        self.trains("data.files=['data/*']", f'data.columns={{a={{as="number"}},{columns},label={{as="label"}}}}', "data.held_out_fraction=0",
                    "train.evaluate_every_steps=0", f"train.global_batch_size={ROWS}", f"train.micro_batch_size={ROWS}", "debug.dump_steps=[1]")
        [dump] = self.run_folder.glob("dump/*/batch.safetensors")
        features = load_file(dump)["features"]
        return features[np.argsort(features[:, 0]), 1:]

    def test_decimals_and_runs(self):
        numbers = [decimal.Decimal(i) / 4 for i in range(ROWS)]
        runs = pa.RunEndEncodedArray.from_arrays(pa.array([10, 15, ROWS], pa.int32()), pa.array([1.5, 2.5, 0.5]))
        words = pa.RunEndEncodedArray.from_arrays(pa.array([10, ROWS], pa.int32()), pa.array([None, "y"]))
        table = pa.table(table_of(d32=pa.array(numbers, pa.decimal32(5, 2)), d64=pa.array(numbers, pa.decimal64(12, 2)), runs=runs, words=words))
        found = self.features_of('"d*"={as="number"},runs={as="number"},words={as="category",missing="zero"}', table)
        quarters = np.arange(ROWS) / 4
        np.testing.assert_array_equal(found, np.stack([quarters, quarters, [1.5] * 10 + [2.5] * 5 + [0.5] * (ROWS - 15), [0] * 10 + [1] * (ROWS - 10)], 1))

    def test_lists_of_all_kinds(self):
        """A list of lists is flattened, as is a tensor of a fixed shape."""
        values = np.arange(ROWS * 6.0).reshape(ROWS, 2, 3)
        flat, nested = values.reshape(ROWS, 6).tolist(), values.tolist()
        arrays = {"view": pa.array(flat, pa.list_view(pa.float32())), "large view": pa.array(flat, pa.large_list_view(pa.float64())),
                  "large": pa.array(flat, pa.large_list(pa.float32())), "nested": pa.array(nested, pa.list_(pa.list_(pa.float32()))),
                  "fixed": pa.array(nested, pa.list_(pa.list_(pa.float32(), 3), 2)), "large nested": pa.array(nested, pa.large_list(pa.list_(pa.int32()))),
                  "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}
        for name, array in arrays.items():
            for file in ("a.arrow", "a.parquet"):
                with self.subTest(name, file=file):
                    if "view" not in name or file == "a.arrow":
                        found = self.features_of('v={as="tensor"}', pa.table(table_of(v=array)), file)
                        np.testing.assert_array_equal(found, values.reshape(ROWS, 6))
        truth = [[i % 2 == 0, True] for i in range(ROWS)]
        np.testing.assert_array_equal(self.features_of('v={as="tensor"}', pa.table(table_of(v=pa.array(truth)))), np.array(truth, float))

    def test_a_view_whose_lists_overlap(self):
        view = pa.ListViewArray.from_arrays([i % 3 for i in range(ROWS)], [2] * ROWS, pa.array([0.0, 1.0, 2.0, 3.0]))
        found = self.features_of('v={as="tensor"}', pa.table(table_of(v=view)))
        np.testing.assert_array_equal(found, [[i % 3, i % 3 + 1] for i in range(ROWS)])

    def test_lists_of_lists_that_differ(self):
        self.write(table_of(v=pa.array([[[1.0, 2.0], [3.0]]] * ROWS)))
        self.refused("the lists inside of lists have 2 and 1 numbers; expected one shape", sets=['data.columns={v={as="tensor"},label={as="label"}}'])

    def test_fields_of_structs(self):
        rows = [None if i == 3 else {"k": i, "l": {"m": i / 2, "w": "xy"[i % 2]}} for i in range(ROWS)]
        expected = np.array([[0, 0, 0, 0] if i == 3 else [i, i / 2, i % 2 == 0, i % 2] for i in range(ROWS)], float)
        table = pa.table(table_of(s=pa.array(rows)))
        for file in ("a.arrow", "a.parquet"):
            found = self.features_of('"s.k"={as="number",missing="zero"},"s.l.m"={as="number",missing="zero"},"s.l.w"={as="category",missing="zero"}', table, file)
            np.testing.assert_array_equal(found, expected)
        self.refused("there is no column 's.n'", "s.k, s.l, s.l.m, s.l.w", sets=['data.columns={"s.n"={as="number"},label={as="label"}}'])

    def test_types_that_are_neither(self):
        nested = pa.array([{"k": i} for i in range(ROWS)])
        self.write(table_of(odd=nested))
        self.refused("the column 'odd' of 'data/a.parquet' is struct<k: int64>; as = \"number\" expects numbers")
        self.write(table_of(odd=pa.array([[[1.0]]] * ROWS)))
        self.refused("the column 'odd' of 'data/a.parquet' is list<")

    def test_columns_behind_nested_ones_are_the_right_ones(self):
        self.write(table_of(odd=pa.array([{"k": i, "l": {"m": "x"}} for i in range(ROWS)]), b=np.arange(ROWS) + 0.5,
                            pairs=pa.array([[(1, "x")]] * ROWS, pa.map_(pa.int64(), pa.string())), c=np.arange(ROWS) + 0.25))
        self.trains('data.columns={b={as="number",normalise="min_max"},c={as="number",normalise="min_max"},label={as="label"}}',
                    "data.held_out_fraction=0", "train.evaluate_every_steps=0")
        described = (self.run_folder / "data.json").read_text()
        self.assertIn('"shift": 0.5', described)
        self.assertIn('"shift": 0.25', described)

    def test_two_columns_of_one_name(self):
        numbers = pa.array(np.arange(float(ROWS)))
        self.write(pa.Table.from_arrays([numbers, numbers, pa.array(np.arange(ROWS) % 2)], ["a", "a", "label"]))
        self.refused("two columns of 'data/a.parquet' are called 'a'")
        self.write_text("a,a,label\n1,2,0\n")
        self.refused("two columns of 'data/a.csv' are called 'a'", csv=True)

    def test_a_column_that_changes_its_type_between_files(self):
        self.write(table_of())
        self.write({**table_of(), "a": [str(i) for i in range(ROWS)]}, "b.parquet")
        self.refused("the column 'a' is string in 'data/b.parquet', but double in other files")
        self.write(table_of(t=pa.array(range(ROWS), pa.timestamp("ms"))))
        self.write(table_of(t=pa.array(range(ROWS), pa.timestamp("us"))), "b.parquet")
        self.refused("the column 't' is timestamp[us] in 'data/b.parquet', but timestamp[ms] in other files")

    def rows(self, *filters, key="filter"):
        """Trains on the rows that conditions leave, and returns how many."""
        done = self.trains(f"data.{key}=[{', '.join(filters)}]", 'data.columns={a={as="number"},label={as="label"}}', "data.held_out_fraction=0",
                           "train.evaluate_every_steps=0", "train.global_batch_size=2", "train.micro_batch_size=2")
        return int(re.search(r"data: (\d+) rows", done.err)[1])

    def test_filters_of_days_and_times(self):
        start = datetime.datetime(2024, 1, 1)
        hours = [start + datetime.timedelta(hours=12 * i) for i in range(ROWS)]
        self.write(table_of(day=pa.array([each.date() for each in hours]), day64=pa.array([each.date() for each in hours], pa.date64()),
                            time=pa.array([each.time() for each in hours], pa.time32("s")),
                            **{unit: pa.array(hours, pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "us", "ns")}))
        for day in ("day", "day64"):
            self.assertEqual(self.rows(f"['{day}', '>=', '2024-01-05']"), ROWS - 8)
        for unit in ("s", "ms", "us", "ns"):
            self.assertEqual(self.rows(f"['{unit}', '<=', '2024-01-05 12:00:00']"), 10)
        self.assertEqual(self.rows("['ns', '>', '2024-01-05T11:59:59.5Z']", "['day', 'in', ['2024-01-05', '2024-01-07']]"), 3)
        self.assertEqual(self.rows("['time', '=', '12:00']"), ROWS // 2)
        for word in ("2024-02-30", "monday", "2024-01-05 12:00"):
            self.refused(f"filter compares the column 'day', which is date32[day], with '{word}'", 'as "2024-01-05"',
                         sets=[f"data.filter=[['day', '>', '{word}']]"])

    def test_filters_of_truth_and_of_missing_values(self):
        self.write(table_of(b=pa.array([i % 4 == 0 for i in range(ROWS)]), x=pa.array([None, float("nan"), *range(2, ROWS)], pa.float64(), from_pandas=False)))
        for truth in ("true", "1"):
            self.assertEqual(self.rows(f"['b', '=', {truth}]"), ROWS // 4)
        self.assertEqual(self.rows("['x', 'is not', 'missing']"), ROWS - 2)
        self.assertEqual(self.rows("['a', '=', 7]", "['x', 'is', 'missing']", key="filter_any"), 3)
        self.refused("filter compares the column 'b', which is bool", sets=["data.filter=[['b', '=', 2]]"])
        self.refused("'is' takes the word \"missing\" alone", sets=["data.filter=[['b', 'is', 2]]"], status=USAGE)

    def test_labels(self):
        self.write({**table_of(), "label": pa.array([None] + [i % 2 for i in range(1, ROWS)])})
        self.refused("row 0: the column 'label' has no value", sets=["data.held_out_fraction=0", "train.evaluate_every_steps=0"])
        self.write({**table_of(), "label": [0.5] * ROWS})
        self.refused("the column 'label' is 0.5")
        self.write({**table_of(), "label": pa.nulls(ROWS)})
        self.refused("the column 'label' has no value to learn the size of 'targets' from")
        self.write({**table_of(), "label": [3] * ROWS})
        self.trains("model.output_dim=4")  # three of them never come
        self.write({**table_of(), "label": [(7, 3)[i % 2] for i in range(ROWS)]})
        self.refused("the column 'label' is 7; the model has classes 0 to 3", "the numbers then are names of classes", sets=["model.output_dim=4"])

    def test_what_stands_for_no_value(self):
        numbers = [None, None, 1.0, 2.0, 2.0, 10.0]
        words = [None, None, "x", "y", "y", "z"]
        table = pa.table({"a": np.arange(6.0), "x": numbers, "w": words, "label": [0, 1] * 3})
        self.write(table)

        def first(columns):
            """What the model gets for the rows, in their order."""
            self.trains(f'data.columns={{a={{as="number"}},{columns},label={{as="label"}}}}', "data.held_out_fraction=0",
                        "train.evaluate_every_steps=0", "train.global_batch_size=6", "train.micro_batch_size=6", "debug.dump_steps=[1]")
            [dump] = self.run_folder.glob("dump/*/batch.safetensors")
            features = load_file(dump)["features"]
            return features[np.argsort(features[:, 0]), 1:]

        for missing, value in (('"median"', 2.0), ('"most_frequent"', 2.0), ('"constant",fill=-3.5', -3.5)):
            np.testing.assert_array_equal(first(f'x={{as="number",missing={missing}}}')[:, 0], [value, value, *numbers[2:]])
        # A constant goes in before the others are normalised: 10 becomes 1, and 5.5 a half.
        self.assertEqual(first('x={as="number",missing="constant",fill=5.5,normalise="min_max"}')[0, 0], 0.5)
        np.testing.assert_array_equal(first('w={as="category",missing="most_frequent"}')[:3], [[0, 1, 0], [0, 1, 0], [1, 0, 0]])
        np.testing.assert_array_equal(first('w={as="category",missing="own_word"}')[1:3], [[0, 0, 0, 1], [1, 0, 0, 0]])
        np.testing.assert_array_equal(first('w={as="category",missing="own_word",encode="index"}')[:, 0], [3, 3, 0, 1, 1, 2])
        hashed = first('w={as="category",missing="own_word",encode="hash",size=50}')
        np.testing.assert_array_equal(hashed.sum(1), np.ones(6))
        self.assertFalse((hashed[0] == hashed[2]).all())

        # Predictions take what training has learned.
        columns = 'x={as="number",missing="median"},w={as="category",missing="most_frequent"}'
        first(columns)
        pq.write_table(table.slice(0, 2), self.folder / "new.parquet")
        pq.write_table(pa.table({"a": [0.0, 1.0], "x": [2.0, 2.0], "w": ["y", "y"], "label": [0, 1]}), self.folder / "filled.parquet")
        answers = []
        for name in ("new", "filled"):
            self.succeeds(self.troika("predict", self.run_folder, "--data", f"{name}.parquet", "--out", f"{name}.csv"))
            answers.append((self.folder / f"{name}.csv").read_text())
        self.assertEqual(answers[0], answers[1])
        for columns, message in (('x={as="number",missing="own_word"}', "is for categories"), ('w={as="category",missing="median"}', "is for numbers"),
                                 ('x={as="number",fill=1}', "fill is for missing"), ('w={as="category",missing="most_frequent",encode="hash",size=3}', "learns none")):
            self.refused(message, sets=[f'data.columns={{{columns},label={{as="label"}}}}'], status=USAGE)

    def test_a_category_of_one_word_or_none(self):
        columns = 'data.columns={word={as="category",missing="zero"},label={as="label"}}'
        self.write(table_of(word=["same"] * ROWS))
        self.trains(columns)
        self.write(table_of(word=pa.array([None] * ROWS, pa.string())))
        self.refused("the column 'word' has no value to learn the size of 'features' from", sets=[columns])

    def test_a_column_without_values(self):
        self.write(table_of(none=pa.nulls(ROWS)))
        self.refused("the column 'none' has no value")
        for missing in ("zero", "mean"):
            self.trains(f'data.columns={{a={{as="number"}},none={{as="number",missing="{missing}",normalise="standard"}},label={{as="label"}}}}')
        self.write(table_of(none=pa.array([float("nan")] * ROWS)))
        self.trains('data.columns={none={as="number",missing="mean",normalise="min_max"},label={as="label"}}')

    def test_lists_of_which_some_are_bad(self):
        """Their length is that of most. Of a fixed size, one that is missing has elements all the same."""
        columns = 'data.columns={v={as="tensor"},label={as="label"}}'
        skips = (columns, "data.on_bad_row='skip'")
        lists = [[float(i), 1.0] for i in range(ROWS)]
        for type_ in (pa.list_(pa.float32()), pa.list_(pa.float32(), 2)):
            self.write(table_of(v=pa.array([None, [None, 1.0], *lists[2:]], type_)))
            self.refused("row 0: the column 'v' has no value", sets=[columns, "data.held_out_fraction=0", "train.evaluate_every_steps=0"])
            self.assertIn("2 bad rows left out, the first at 'data/a.parquet', row group 0, row 0: the column 'v' has no value",
                          self.trains(*skips).err)
            self.assertIn("1 row left out: no value", self.trains(*skips, columns.replace('"tensor"', '"tensor",missing="skip_row"')).err)
        for odd in ([1.0], [1.0, 2.0, 3.0]):
            self.write(table_of(v=pa.array([odd, *lists[1:]])))
            self.assertIn("1 bad row left out", self.trains(*skips).err)
            self.assertIn("1 bad row left out", self.trains(*skips, "model.input_dim=2").err)

    def test_lists(self):
        columns = 'data.columns={v={as="tensor"},label={as="label"}}'
        self.write(table_of(v=pa.array([[1.0, 2.0], [3.0]] * (ROWS // 2))))
        self.refused("is a list of 1 number; expected 2", sets=[columns])
        self.write(table_of(v=pa.array([[1.0, None]] * ROWS)))
        self.refused("the column 'v' has an element that is NaN or without a value", sets=[columns])
        self.write(table_of(v=pa.array([[1.0, float("nan")]] * ROWS)))
        self.refused("the column 'v' has an element that is NaN or without a value", sets=[columns])
        self.write(table_of(v=pa.array([[]] * ROWS, pa.list_(pa.float64()))))
        self.refused("the column 'v' has no value to learn the size of 'features' from", sets=[columns])

    def test_a_split_column_of_any_type(self):
        self.write(table_of(side=[float(i % 4 == 0) for i in range(ROWS)]))
        columns = 'data.columns={a={as="number"},label={as="label"}}'
        self.trains("data.split_column=side", columns)
        self.write(table_of(side=[[1.0]] * ROWS))
        self.refused("the column 'side' is list<", "split_column expects words, numbers or truth values",
                     sets=["data.split_column=side", columns])
        self.write(table_of(side=[i + 0.5 for i in range(ROWS)]))
        self.refused("no row is left to train on", sets=["data.split_column=side", columns])

    def test_names_that_are_odd(self):
        self.write(table_of(**{"a.b": np.arange(ROWS), "": np.arange(ROWS), "line\nbreak": np.arange(ROWS), "ü 漢": np.arange(ROWS)}))
        self.trains()


class Text(OddTest):
    def test_headers_alone_and_nothing(self):
        self.write_text("a,label\n")
        self.refused("the table has no rows: 'data/a.csv' is empty", csv=True)
        self.write_text("a,label")
        self.refused("'data/a.csv'", csv=True)
        self.write_text("")
        self.refused("every file that 'data/*.csv' matches is empty", csv=True)

    def test_rows_that_differ_in_length(self):
        self.write_text("a,label\n1,0\n2\n")
        self.refused("cannot read the table 'data/a.csv'", "Row #3: Expected 2 columns, got 1", "as many values as the header", csv=True)

    def test_a_text_of_a_million_letters(self):
        rows = "".join(f"{i},{'x' * 1_000_000},{i % 2}\n" for i in range(12))
        self.write_text("a,text,label\n" + rows)
        columns = 'data.columns={a={as="number"},text={as="category",encode="hash",size=4},label={as="label"}}'
        self.trains(columns, "train.global_batch_size=4", "train.micro_batch_size=4", csv=True)
        self.refused("the column 'text' of 'data/a.csv' is string; as = \"number\" expects numbers", csv=True)
        self.write_text("a,text,label\n1,2,0\n" + rows)  # the first says that it is a number
        self.trains(columns, "train.global_batch_size=4", "train.micro_batch_size=4", csv=True)

    def test_marks_and_ends_of_lines(self):
        self.write_text(b"\xef\xbb\xbfa,label\r\n" + b"".join(b"%d,%d\r\n" % (i, i % 2) for i in range(ROWS)))
        self.trains(csv=True)

    def test_bytes_that_are_no_text(self):
        self.write_text(b"a,word,label\n" + b"".join(b"%d,\xff\x00%d,%d\n" % (i, i % 3, i % 2) for i in range(ROWS)))
        self.trains('data.columns={a={as="number"},word={as="category"},label={as="label"}}', csv=True)
        self.refused("the column 'word' of 'data/a.csv' is binary", csv=True)


class JsonLines(OddTest):
    """An object a line; a column has the type that all of its values have."""

    FILES = "data.files=['data/a.jsonl']"

    def lines(self, rows, name="a.jsonl"):
        self.write_text("".join(json.dumps(row) + "\n" for row in rows), name)

    def losses_of(self, *sets):
        self.trains("data.held_out_fraction=0", *sets)
        return self.losses()

    def test_they_are_the_table_that_parquet_is(self):
        rows = [{"a": i * 0.5, "word": "ab"[i % 2], "list": [i, 1.5], "label": i % 2} for i in range(ROWS)]
        columns = 'data.columns={a={as="number"},word={as="category"},list={as="tensor"},label={as="label"}}'
        self.write(pa.Table.from_pylist(rows))
        expected = self.losses_of(columns)
        self.lines(rows)
        self.assertEqual(self.losses_of(columns, self.FILES), expected)
        with gzip.open(self.folder / "data/b.json.gz", "wb") as packed:
            packed.write((self.folder / "data/a.jsonl").read_bytes())
        self.assertEqual(self.losses_of(columns, "data.files=['data/b.json.gz']"), expected)

    def test_values_far_behind_change_the_type(self):
        rows = [{"a": i, "label": i % 2, "pad": "x" * 4000} for i in range(3000)]  # several blocks
        rows[2900]["a"] = 0.5
        rows[2950]["late"] = 1
        self.lines(rows)
        self.trains(self.FILES, 'data.columns={a={as="number"},late={as="number",missing="zero"},label={as="label"}}')

    def test_marks_blank_lines_and_nothing_at_the_end(self):
        rows = "\n\n".join(json.dumps({"a": i, "label": i % 2}) for i in range(ROWS))
        self.write_text(b"\xef\xbb\xbf" + rows.encode(), "a.jsonl")
        self.trains(self.FILES)

    def test_bad_lines_are_named(self):
        good = [{"a": i, "label": i % 2} for i in range(3)]
        for bad, *needles in (('{"a": "x", "label": 1}', "row 3: the column 'a' is a string, and a number in a row before"),
                              ('{"a": 1', "'data/a.jsonl'"),
                              ("[1, 2]", "row 3 is an array", "an object a line"),
                              ("7", "row 3 is a number: JSON Lines have an object a line"),
                              ('"word"', "row 3 is a string: JSON Lines have an object a line"), ("hello", "'data/a.jsonl'")):
            with self.subTest(bad=bad):
                self.write_text("".join(json.dumps(row) + "\n" for row in good) + bad + "\n", "a.jsonl")
                self.refused(*needles, sets=(self.FILES,))
        self.write_text("\n", "a.jsonl")
        self.refused("the table has no rows", sets=(self.FILES,))


class PackedCsv(OddTest):
    def test_a_column_that_widens_late(self):
        with gzip.open(self.folder / "data/a.csv.gz", "wt") as text:
            text.write("a,pad,label\n" + "".join(f"{i},{'x' * 4000},{i % 2}\n" for i in range(3000)) + "0.5,x,1\n")
        self.trains("data.files=['data/a.csv.gz']", 'data.columns={a={as="number"},label={as="label"}}')


class Files(OddTest):
    def test_files_that_are_no_tables(self):
        self.write(table_of())
        (self.folder / "data/README.md").write_text("# What this is\n")
        (self.folder / "data/a.parquet.crc").write_bytes(b"crc\0")
        done = self.trains("data.files=['data']")
        self.assertIn("2 files left out, the first is 'data/README.md'", done.err)
        self.refused("cannot read the table 'data/README.md'", sets=["data.files=['data/README.md']"])
        self.refused("no file that 'data/*.md' matches is a table", sets=["data.files=['data/*.md']"])

    def test_texts_of_another_encoding(self):
        text = "a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(ROWS))
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            self.write_text(text.encode(encoding))
            self.refused("its text is UTF-16; expected UTF-8", "iconv -f UTF-16", csv=True)
        self.write_text(b"PK\x03\x04" + bytes(30), "a.csv")
        self.refused("it is a ZIP archive", "unpack it first", csv=True)

    def test_a_compressed_text_that_is_cut_off(self):
        numbers = np.random.default_rng(1).normal(size=5000)
        whole = gzip.compress(("a,label\n" + "".join(f"{x},{i % 2}\n" for i, x in enumerate(numbers))).encode())
        self.write_text(whole[:len(whole) // 2], "a.csv.gz")
        self.refused("cannot read the table 'data/a.csv.gz'", "the file is cut off", sets=["data.files=['data/a.csv.gz']"])

    def test_a_partition_whose_name_begins_with_an_underscore(self):
        for part in (1, 2):
            (self.folder / f"data/_p={part}").mkdir()
            self.write(table_of(), f"_p={part}/a.parquet")
        (self.folder / "data/_temporary").mkdir()
        self.write_text("no table", "_temporary/a.parquet")
        done = self.trains("data.files=['data']", 'data.columns={a={as="number"},_p={as="category"},label={as="label"}}')
        self.assertIn(f"data: {2 * ROWS} rows", done.err)

    def test_credentials_are_not_shown(self):
        sets = ["data.files=['s3://KEY:SECRET@bucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1']", "storage.retry_seconds=0"]
        self.refused("cannot list 's3://bucket", sets=sets, status=STORAGE)
        done = self.train(*sets)
        self.assertNotIn("SECRET", done.err.split("--set")[0])

    def test_empty_row_groups_and_files(self):
        table = pa.table(table_of())
        with pq.ParquetWriter(self.folder / "data/a.parquet", table.schema) as writer:
            writer.write_table(table.slice(0, 0))
            writer.write_table(table.slice(0, 20))
            writer.write_table(table.slice(20, 0))
            writer.write_table(table.slice(20, 20))
        self.write(table.slice(0, 0), "b.parquet")
        self.trains()

    def test_a_folder_called_as_a_file(self):
        (self.folder / "data/a.parquet").mkdir()
        self.refused("'data/*.parquet'")

    def test_files_that_are_replaced_during_a_run(self):
        """More files than are kept open, of more rows than are kept decoded: each epoch reads them again."""
        whole = pa.table(large())
        others = {"rows": whole.slice(0, 5000), "columns": whole.add_column(0, "b", whole["a"]),
                  "types": whole.set_column(0, "a", whole["a"].cast(pa.string())), "none": None, "no-table": b"PAR1 but no table"}
        for how, other in others.items():
            with self.subTest(how):
                for i in range(FILES):
                    self.write(whole, f"{i:02}.parquet")
                self.fails_after(self.start_training("data.cache_mb=1", *LARGE, f"name={how}", ranks=1), other)

    def start_training(self, *sets, ranks, **variables):
        process = self.start(*train_arguments((ENDLESS, *sets)), "--ranks", ranks, **variables)
        name = next(each.split("=")[1] for each in sets if each.startswith("name="))
        metrics = self.folder / "runs" / name / "metrics.jsonl"
        wait_until(lambda: process.popen.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") > 1), "steps of training")
        return process

    def fails_after(self, process, other):
        for path in sorted((self.folder / "data").iterdir()):
            if other is None:
                path.unlink()
            elif isinstance(other, bytes):
                path.write_bytes(other)
            else:
                pq.write_table(other, self.folder / "new")
                (self.folder / "new").replace(path)
        done = process.wait()
        self.assertEqual(done.status, DATA, str(done))
        self.assertRegex(done.err, r"troika: (rank 0: )?(cannot read (the table|row group \d+ of)|the table) 'data/\d\d.parquet'")


if __name__ == "__main__":
    unittest.main()
