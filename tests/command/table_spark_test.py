"""Folders that Spark has written, as tables: Parquet and text, whole and by partitions.

Run with pytest, in an environment with pyarrow and safetensors. Spark has an environment of its own, and needs Java.
"""

import pathlib
import shutil
import subprocess
import sys
import unittest

import numpy as np
from safetensors.numpy import load_file

from command import CommandTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = 300
RECIPE = """
name = "small"
[model]
kind = "mlp"
hidden_dims = [8]
[data]
kind = "table"
held_out_fraction = 0
[data.columns]
id = { as = "number" }
holes = { as = "number", missing = "zero" }
land = { as = "category" }
price = { as = "number" }
pair = { as = "tensor" }
at = { as = "number" }
day = { as = "number" }
flag = { as = "number" }
year = { as = "number" }
y = { as = "label" }
[train]
steps = 1
global_batch_size = 300
micro_batch_size = 300
precision = "fp64"
evaluate_every_steps = 0
[debug]
dump_steps = [1]
[observe]
tensorboard = false
"""


def expected(number):
    holes = 0 if number % 10 == 0 else number % 5
    land = [float(number % 3 == each) for each in range(3)]
    return [number, holes, *land, number % 4 / 4, number % 2, 1, number * 3600, number % 30, number % 2 == 0, 2023 + number % 3]


@unittest.skipUnless(shutil.which("java"), "Spark needs Java: apt-get install default-jre-headless")
class FoldersOfSpark(CommandTest):
    @classmethod
    def setUpClass(cls):
        found = subprocess.run([sys.executable, ROOT / "scripts/python_env.py", "spark"], check=True, stdout=subprocess.PIPE, text=True)
        cls.spark = found.stdout.split()[-1]

    def rows_of(self, name, *sets):
        self.succeeds(self.train(f"data.files=['spark/{name}']", *sets, flags=("--overwrite",)))
        batch = load_file(self.run_folder / "dump/step-1/batch.safetensors")
        return batch["features"][np.argsort(batch["features"][:, 0])], batch["targets"]

    def test_are_read_as_they_were_written(self):
        writer = pathlib.Path(__file__).with_name("spark_writer.py")
        done = subprocess.run([self.spark, writer, self.folder / "spark"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.folder / "recipe.toml").write_text(RECIPE)
        whole = np.array([expected(number) for number in range(ROWS)], float)
        whole[:, 8] *= 1e9  # Spark keeps times as 96 bits, which Arrow reads as nanoseconds
        for name in ("plain", "zstd", "partitioned"):
            features, targets = self.rows_of(name)
            np.testing.assert_allclose(features, whole, rtol=1e-6, err_msg=name)
            self.assertEqual(sum(targets), ROWS // 2)
        columns = 'id={as="number"},holes={as="number",missing="zero"},land={as="category"},flag={as="number"},y={as="label"}'
        features, _ = self.rows_of("text", f"data.columns={{{columns}}}")
        np.testing.assert_allclose(features, whole[:, [0, 1, 2, 3, 4, 10]])


if __name__ == "__main__":
    unittest.main()
