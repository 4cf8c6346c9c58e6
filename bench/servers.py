"""Parameters on servers: with a worker that is five times slower than the others, updates that wait for nobody against those of
all workers together; and updates of many parameters against all_reduce."""

import json
import math

import layouts
from runs import Failed

GPT = layouts.HERE / "recipes" / "gpt-small.toml"
MLP = layouts.HERE / "recipes" / "mlp.toml"
SERVER = ("sync.kind=server",)
ASYNCHRONOUS = (*SERVER, 'sync.staleness="any"')
TEXT = ("data.kind=text", 'data.paths=["/usr/include/*.h", "/usr/include/linux/*.h"]', "data.held_out_fraction=0.02")
WORKERS, TIMES_SLOWER, SOONER_GOAL = 4, 5, 2
# All wait so long for each sample, so that a machine with few cores can have all of them.
SAMPLE_SECONDS = 0.05
STEPS, QUICK_STEPS, EVERY = 80, 40, 5
# 10 M parameters, and hardly any arithmetic beside them.
DENSE = ("model.input_dim=1024", "model.hidden_dims=[3072, 2048]", "model.output_dim=256", "train.global_batch_size=2",
         "train.micro_batch_size=1")
UPDATES, QUICK_UPDATES, UPDATES_GOAL = 150, 40, 1
TABLE, QUICK_TABLE = (10_000_000, 64, 4096), (100_000, 64, 4096)
ROW_STEPS, DENSE_STEPS, ROWS_GOAL = 100, 4, 20


def train(rows, recipe, name, ranks, steps, *sets):
    """The metrics of a run."""
    bench = rows.bench
    sets = (f"runs_dir={bench.scratch}", f"name={name}", f"train.steps={steps}", *sets)
    bench.run([rows.options.troika, "train", recipe, "--ranks", ranks, "--json", "--overwrite",
               *(word for one in sets for word in ("--set", one))])
    return [json.loads(line) for line in (bench.scratch / name / "metrics.jsonl").read_text().splitlines()]


def seconds_to(lines, loss):
    """Of the steps up to the first evaluation that is as good."""
    seconds = 0
    for line in lines:
        seconds += line["step_seconds"]
        if line.get("held_out_loss", float("inf")) <= loss:
            return seconds
    best = min(line["held_out_loss"] for line in lines if "held_out_loss" in line)
    raise Failed(f"servers: a held-out loss of {loss:.3f} is not reached in {len(lines)} steps, {best:.3f} is")


def slow_worker(rows):
    """Both have four times the steps that the synchronous one takes to the loss at most."""
    steps = QUICK_STEPS if rows.options.quick else STEPS
    sets = (*TEXT, f"train.evaluate_every_steps={EVERY}", f"debug.slow_workers=[{WORKERS - 1}]",
            f"debug.slow_times={TIMES_SLOWER}", f"debug.sample_seconds={SAMPLE_SECONDS}")
    loss = None
    pairs = []
    for number in range(1, rows.options.pairs + 1):
        rows.say(f"servers, a slow worker: pair {number} of {rows.options.pairs}")
        synchronous = train(rows, GPT, "synchronous", WORKERS, steps, *sets, *SERVER)
        if loss is None:
            loss = math.ceil(100 * synchronous[-1]["held_out_loss"]) / 100
        theirs = seconds_to(synchronous, loss)
        ours = seconds_to(train(rows, GPT, "asynchronous", WORKERS, 4 * steps, *sets, *ASYNCHRONOUS), loss)
        pairs.append((ours, theirs))
    yield (f"GPT of 0.8 M to a held-out loss of {loss:.2f}, a worker {TIMES_SLOWER} times slower", "troika, asynchronous",
           "synchronous", WORKERS, pairs, SOONER_GOAL)


def seconds_of_update(lines):
    behind = lines[len(lines) // 3:]
    return sum(line["step_seconds"] for line in behind) / sum(line.get("updates", 1) for line in behind)


def updates(rows):
    steps = QUICK_UPDATES if rows.options.quick else UPDATES

    def theirs():
        return seconds_of_update(train(rows, MLP, "gloo", 2, steps, *DENSE, "comm.engine=gloo"))

    for name, sets in (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS)):
        def ours():
            return seconds_of_update(train(rows, MLP, "server", 2, steps, *DENSE, *sets, "sync.save_every_updates=0"))

        yield (f"update of 10 M parameters, {name}", "troika, 1 server", "troika, all_reduce over Gloo", 2,
               rows.alternate(f"servers, {name} updates", ours, theirs), UPDATES_GOAL)


def table(rows):
    """Both sides look the same random rows up. DDP holds the whole table on each rank, for sparse gradients too."""
    program = rows.options.troika.parent / "tests" / "bench_server_rows" / "server_rows_bench"
    sizes = QUICK_TABLE if rows.options.quick else TABLE

    def ours(kind, steps):
        out = rows.bench.run([rows.options.troika, "launch", "--ranks", 2, "--", program, kind, *sizes, steps])[0]
        return json.loads(out.splitlines()[-1])

    def seconds(run):
        return run["seconds_per_step"]

    count, columns, looked_up = sizes
    name = f"step on {looked_up:,} rows of an embedding of {count:,} x {columns}"

    def by_row():
        return seconds(ours("rows", ROW_STEPS))

    yield (name, "troika, rows of a table on a server", "troika, DataParallel, dense", 2,
           rows.alternate("rows, dense", by_row, lambda: seconds(ours("dense", DENSE_STEPS))), ROWS_GOAL)
    yield (name, "troika, rows of a table on a server", "PyTorch DDP, sparse gradients", 2,
           rows.alternate("rows, sparse", by_row,
                          lambda: seconds(rows.torchrun(2, "ddp_rows.py", "sparse", *sizes, ROW_STEPS))), None)


def training(rows):
    """What `rows.row` takes, for each row."""
    yield from slow_worker(rows)
    yield from updates(rows)
    yield from table(rows)
