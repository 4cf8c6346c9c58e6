"""Rows from a Parquet file, against PyTorch's DataLoader with pyarrow: 20 numeric columns and a label, shuffled.

Both have one thread that loads. Ours is the loader of a run without a model (tests/command/table_tool.cc).
"""

import json
import pathlib

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "table_loader.py"
MILLION = 1_000_000
GROUP_ROWS = 131_072
GOAL = 5  # of a data set that gives rows

RECIPE = """
name = "table"
[model]
kind = "mlp"
hidden_dims = []
[data]
kind = "table"
files = ["{file}"]
held_out_fraction = 0
[data.columns]
"*" = {{ as = "number" }}
label = {{ as = "label" }}
[train]
global_batch_size = 256
micro_batch_size = 256
"""
WRITE = """
import sys, numpy, pyarrow, pyarrow.parquet
random, rows = numpy.random.default_rng(1), int(sys.argv[2])
columns = {f"x{i}": random.normal(size=rows).astype((numpy.float32, numpy.float64)[i % 2]) for i in range(20)}
table = pyarrow.table({**columns, "label": random.integers(0, 4, size=rows)})
pyarrow.parquet.write_table(table, sys.argv[1], row_group_size=int(sys.argv[3]))
"""


def loading(rows):
    """What `rows.row` takes, for each peer; `rows` is a Rows. Times are those of a million rows."""
    bench, options = rows.bench, rows.options
    stored = 2 * MILLION
    file, recipe = bench.scratch / "table.parquet", bench.scratch / "table.toml"
    tool = options.troika.parent / "tests" / "command" / "table_tool"
    recipe.write_text(RECIPE.format(file=file))
    bench.run([options.peer_python, "-c", WRITE, file, stored, GROUP_ROWS])

    def ours():
        found = json.loads(bench.run([tool, recipe, stored])[0])
        return found["load_seconds"] / found["samples"] * MILLION

    def theirs(give, wanted):
        found = json.loads(bench.run([options.peer_python, PEER, file, wanted, give])[0])
        return found["seconds"] / found["rows"] * MILLION

    for give, wanted, goal in (("rows", stored // 8, GOAL), ("batches", stored, None)):
        pairs = rows.alternate(f"table, {give}", ours, lambda: theirs(give, wanted))
        yield f"a million rows of Parquet, {give}", "troika", "DataLoader, pyarrow", 1, pairs, goal
