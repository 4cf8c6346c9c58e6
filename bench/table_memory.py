#!/usr/bin/env python3
"""How much memory a rank takes to train on a table that is larger: bench/table_memory.py [--gigabytes 4] [--steps 200]

Writes a Parquet file of 20 numeric columns and a label in a temporary folder, trains a small network on it on two ranks,
and prints one line of JSON: the bytes of the table, and the peak of each rank's memory with LibTorch and Arrow in it.
Needs a Python with numpy and pyarrow; TMPDIR says where the table lies.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy
import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).resolve().parent
GROUP_ROWS = 131_072
RECIPE = """
name = "memory"
[model]
kind = "mlp"
hidden_dims = [64]
output_dim = 4
[data]
kind = "table"
files = ["table.parquet"]
held_out_fraction = 0.01
[data.columns]
"*" = { as = "number", normalise = "standard" }
label = { as = "label" }
[train]
global_batch_size = 512
micro_batch_size = 256
"""


def write_table(file, size):
    random = numpy.random.default_rng(1)
    writer = None
    while writer is None or file.stat().st_size < size:
        columns = {f"x{i}": random.normal(size=GROUP_ROWS).astype((numpy.float32, numpy.float64)[i % 2])
                   for i in range(20)}
        table = pyarrow.table({**columns, "label": random.integers(0, 4, size=GROUP_ROWS)})
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--troika", default=HERE.parent / "build" / "troika", type=pathlib.Path)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="troika-bench-") as folder:
        folder = pathlib.Path(folder)
        write_table(folder / "table.parquet", options.gigabytes * 1e9)
        (folder / "recipe.toml").write_text(RECIPE)
        out = subprocess.run([options.troika.resolve(), "train", "recipe.toml", "--ranks", "2", "--json", "--set",
                              f"train.steps={options.steps}"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout
        peaks = [rank["peak_memory_bytes"] for rank in json.loads(out)["ranks"]]
        print(json.dumps({"table_bytes": (folder / "table.parquet").stat().st_size, "peak_memory_bytes": peaks}))


if __name__ == "__main__":
    main()
