"""CSV files as others have written them: without a header, with decimal commas, with words for no value, with other endings.

Run with pytest, in an environment with pyarrow.
"""

import json
import unittest

import numpy as np
import pyarrow as pa

from table_odd_test import DATA, ROWS, USAGE, OddTest

NUMBER = 'x={as="number",normalise="min_max"}'


def lines(row, count=ROWS):
    return "".join(row(i) + "\n" for i in range(count))


class CsvTest(OddTest):
    def learned(self, *sets, columns, files="data/*", **options):
        """Trains, and returns what data.json says of each column."""
        self.succeeds(self.train("train.steps=3", f"data.files=['{files}']", "data.held_out_fraction=0", "train.evaluate_every_steps=0",
                                 f"data.columns={{{columns}}}", *sets, flags=("--overwrite",)))
        described = json.loads((self.run_folder / "data.json").read_text())
        return {each["name"]: each for each in described["columns"]}

    def cannot(self, *parts, columns, sets=(), files="data/*", status=DATA):
        self.refused(*parts, sets=[f"data.files=['{files}']", f"data.columns={{{columns}}}", *sets], status=status)


class Options(CsvTest):
    def test_no_header(self):
        self.write_text(lines(lambda i: f"{i},{i % 3},w{i % 2}"))
        self.assertEqual(list(self.learned("data.csv.header=false", columns='"c[01]"={as="number"},c2={as="label"}')), ["c0", "c1", "c2"])
        found = self.learned("data.csv={header=false,names=['x','y','z']}", columns=NUMBER + ',z={as="label"}')
        self.assertEqual((found["x"]["shift"], found["z"]["words"]), (0, ["w0", "w1"]))
        self.cannot("Expected 2 columns, got 3", "csv.names", sets=["data.csv={header=false,names=['x','y']}"], columns='x={as="number"},y={as="label"}')
        self.cannot("two columns are called 'x'", sets=["data.csv.names=['x','x']"], columns='x={as="label"}', status=USAGE)

    def test_names_replace_the_header(self):
        self.write_text('"a\nb",c\n' + lines(lambda i: f"{i},{i % 2}"))
        self.assertEqual(self.learned("data.csv.names=['x','y']", columns=NUMBER + ',y={as="label"}')["x"]["scale"], 1 / (ROWS - 1))

    def test_a_section_of_its_own(self):
        recipe = (self.folder / "recipe.toml").read_text().replace("[train]", "[data.csv]\nheader = false\n[train]")
        (self.folder / "recipe.toml").write_text(recipe)
        self.write_text(lines(lambda i: f"{i},{i % 2}"))
        self.learned(columns='c0={as="number"},c1={as="label"}')
        self.cannot("unknown key 'heade'; did you mean 'header'?", sets=["data.csv.heade=true"], columns="", status=USAGE)

    def test_words_that_stand_for_no_value(self):
        self.write_text("x,land,y\n" + lines(lambda i: f"{('?', '-999', 'NA', i)[min(i, 3)]},{('NA', 'DE')[i % 2]},{i % 2}"))
        columns = 'x={as="number",missing="mean"},land={as="category",missing="zero"},y={as="label"}'
        found = self.learned("data.csv.missing_words=['?','-999']", columns=columns)
        self.assertEqual((found["x"]["mean"], found["land"]["words"]), (np.mean(np.arange(3, ROWS)), ["DE"]))
        found = self.learned("data.csv={missing_words=['?','-999'],usual_missing_words=false}", columns=columns.replace("number", "category").replace("mean", "zero"))
        self.assertEqual(found["land"]["words"], ["DE", "NA"])
        self.cannot("the column 'x' of 'data/a.csv' is string", "has '?', which is no number", columns=columns)

    def test_decimal_commas(self):
        self.write_text("x;y\n" + lines(lambda i: f"{i},5;{i % 2}"))
        self.assertEqual(self.learned("data.csv.decimal_point=','", columns=NUMBER + ',y={as="label"}')["x"]["shift"], 0.5)
        self.cannot("csv.decimal_point: ',' separates the values too", sets=["data.csv.decimal_point=','", "data.delimiter=','"], columns=NUMBER, status=USAGE)

    def test_another_ending(self):
        self.write_text("x|y\n" + lines(lambda i: f"{i}|{i % 2}"), "a.data")
        self.learned("data.format=csv", "data.delimiter=|", columns=NUMBER + ',y={as="label"}')
        self.cannot("cannot read the table 'data/a.data'", 'format = "csv"', files="data/a.data", columns=NUMBER + ',y={as="label"}')
        self.cannot("no column goes into 'targets', which the model takes", files="data/a.data", columns=NUMBER, status=USAGE)


class Types(CsvTest):
    CATEGORY = 'zip={as="category"},y={as="label"}'

    def test_leading_zeros(self):
        self.write_text("zip,y\n" + lines(lambda i: f"{('00501', '501')[i % 2]},{i % 2}"))
        self.assertEqual(self.learned(columns=self.CATEGORY)["zip"]["words"], ["501"])
        self.assertEqual(self.learned(columns=self.CATEGORY.replace("category", 'category",type="text'))["zip"]["words"], ["00501", "501"])
        self.assertEqual(self.learned(columns='"z*"={as="category",type="text"},y={as="label"}')["zip"]["words"], ["00501", "501"])

    def test_a_type_that_values_do_not_have(self):
        self.write_text("zip,y\n" + lines(lambda i: f"{i if i < 5 else 'x'},{i % 2}"))
        self.cannot("cannot read the table 'data/a.csv'", "invalid value 'x'", "csv.missing_words can name it",
                    columns='zip={as="number",type="integer"},y={as="label"}')
        self.assertEqual(self.learned("data.csv.missing_words=['x']", columns='zip={as="number",type="number",missing="mean"},y={as="label"}')["zip"]["mean"], 2)

    def test_digits_in_one_file_and_letters_in_another(self):
        """Words stay as they are written, also when predictions see the file of digits alone."""
        self.write_text("zip,y\n" + lines(lambda i: f"{('007', '010')[i % 2]},{i % 2}"), "1.csv")
        self.write_text("zip,y\n" + lines(lambda i: f"B{i % 2},{i % 2}"), "2.csv")
        self.write_text("zip,y\n" + lines(lambda i: f"C{i % 2},{i % 2}"), "3.csv")
        self.assertEqual(self.learned(columns=self.CATEGORY)["zip"]["words"], ["007", "010", "B0", "B1", "C0", "C1"])
        done = self.succeeds(self.troika("evaluate", self.run_folder, "--data", "data/1.csv"))
        self.assertNotIn("was not there in training", done.err)
        self.cannot("the column 'zip' of 'data/1.csv' is string", "'data/2.csv', row group 0, row 0 has 'B0', which is no number",
                    columns=self.CATEGORY.replace("category", "number"))

    def test_text_and_parquet_together(self):
        self.write_text("zip,y\n" + lines(lambda i: f"{('007', '010')[i % 2]},{i % 2}"), "1.csv")
        self.write({"zip": ["007", "B"], "y": pa.array([0, 1])}, "2.parquet")
        self.assertEqual(self.learned(columns=self.CATEGORY)["zip"]["words"], ["007", "010", "B"])

    def test_options_of_the_training_hold_for_predictions(self):
        self.write_text(lines(lambda i: f"{i},5;{('?', i)[i > 0]};{i % 2}"), "1.txt")
        options = "data.csv={header=false,names=['x','n','y'],missing_words=['?'],decimal_point=','}"
        self.learned(options, "data.format=csv", columns=NUMBER + ',n={as="number",missing="mean"},y={as="label"}')
        self.succeeds(self.troika("predict", self.run_folder, "--data", "data/1.txt", "--out", "out.csv"))


if __name__ == "__main__":
    unittest.main()
