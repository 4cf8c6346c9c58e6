"""Odd tables: each trains, or ends in one line that names what is wrong.

Run with pytest, in an environment with pyarrow.
"""

import datetime
import gzip
import json
import shutil
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from command import ENDLESS, CommandTest, train_arguments, wait_until
from table_test import RECIPE

USAGE, DATA = 2, 3
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

    def test_types_that_are_words(self):
        words = [("x", "y", "z")[i % 3] for i in range(ROWS)]
        for type in (pa.string_view(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())):
            array = pa.array(words, pa.string()).cast(type) if type != pa.string_view() else pa.array(words, type)
            with pa.ipc.new_file(str(self.folder / "data/a.arrow"), pa.schema({"word": type, "label": pa.int64()})) as file:
                file.write_table(pa.table({"word": array, "label": np.arange(ROWS) % 2}, schema=pa.schema({"word": type, "label": pa.int64()})))
            self.trains("data.files=['data/a.arrow']", 'data.columns={word={as="category"},label={as="label"}}')

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

    def test_a_filter_that_compares_a_day_with_a_word(self):
        self.write(table_of(day=pa.array([datetime.date(2024, 1, 1)] * ROWS)))
        self.refused("filter compares the column 'day', which is date32[day]", "date32 counts days since 1970",
                     sets=["data.filter=[['day', '>', '2024-01-01']]"])

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
        for bad, *needles in (('{"a": "x", "label": 1}', "row 3", "Column(/a) changed from number to string"),
                              ('{"a": 1', "'data/a.jsonl'"),
                              ("[1, 2]", "row 3 is an array", "an object a line"), ("hello", "'data/a.jsonl'")):
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
