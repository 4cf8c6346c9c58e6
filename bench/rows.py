"""Communication, and the training loop of one's own, against what people use today: the first table of bench.py.

As there, ours and the peer's runs alternate, ratios are taken within a pair, and medians are shown. A ratio is
always how many times faster ours is.
"""

import json
import os
import pathlib
import re
import shutil
import statistics
import time

import checkpoints
import compression
import images
import loose
import programs
import servers
import tables
import tokenizing

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
RECIPE = pathlib.Path(__file__).resolve().parent / "recipes" / "mlp.toml"
K, M = 1 << 10, 1 << 20
GLOO_SIZES = [4 * K, 4 * M, 64 * M]
# Also those just above where ours goes about ordinary memory in another way: 16 KB, and 128 KB from all others together.
MPI_SIZES = [4, 64, 256, K, 4 * K, 16 * K, 20 * K, 44 * K, 64 * K, 128 * K, 132 * K, 256 * K, 512 * K, M, 2 * M, 4 * M,
             16 * M, 64 * M, 256 * M]
QUICK_MPI_SIZES = [4, 4 * K, M, 16 * M]
# What a ratio should reach.
GLOO_GOALS = {4 * K: 200, 4 * M: 5, 64 * M: 4}  # of shm
MPI_GOAL = 1
# Two ranks have a core each, and what a piece of news takes from core to core differs threefold from minute to minute
# of a virtual machine: each size is a run of its own there, short enough for both sides to see the same, and there are
# more of them.
RANKS_WITH_A_CORE, TIMES_AS_MANY_PAIRS = 2, 2
OWN_MODULE_GOAL = 10
STEPS_KEPT_GOAL = {2: 0.9}  # by ranks: of those without averaging
START_GOAL = 5


def shown_size(size):
    return f"{size // M} MB" if size >= M else f"{size // K} KB" if size >= K else f"{size} B"


def shown_time(seconds):
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


class Rows:
    """`bench` runs commands; `say` tells how far it is."""

    def __init__(self, bench, say):
        self.bench, self.say = bench, say
        self.options = bench.options

    def troika(self, *words):
        return json.loads(self.bench.run([self.options.troika, "bench", *words, "--json"])[0])

    def torchrun(self, ranks, script, *words):
        out = self.bench.run([self.options.peer_python, "-m", "torch.distributed.run", "--standalone",
                              "--nproc-per-node", ranks, PEERS / script, *words])[0]
        return json.loads(out.splitlines()[-1])

    def alternate(self, name, ours, theirs, times=1):
        """Results of both, pair by pair; so many times as many pairs as were asked for."""
        pairs = []
        for number in range(1, times * self.options.pairs + 1):
            self.say(f"{name}: pair {number} of {times * self.options.pairs}")
            pairs.append((ours(), theirs()))
        return pairs

    # All-reduce. Times by size.

    def ours(self, engine, ranks, sizes, *flags):
        found = self.troika("comm", "--engine", engine, "--ranks", ranks, "--sizes", ",".join(map(str, sizes)),
                            "--budget", self.options.budget, *flags)
        return {one["bytes"]: one["seconds"] for one in found["results"]}

    def gloo(self):
        def peer():
            found = self.torchrun(2, "gloo_all_reduce.py", self.options.budget, *GLOO_SIZES)
            return {int(size): seconds for size, seconds in found.items()}

        kinds = [("shm", ""), ("shm", ", own memory"), ("gloo", "")]
        pairs = self.alternate("all-reduce, Gloo", lambda: [
            self.ours(engine, 2, GLOO_SIZES, *(["--own-memory"] if memory else [])) for engine, memory in kinds], peer)
        for size in GLOO_SIZES:
            for index, (engine, memory) in enumerate(kinds):
                yield row(f"all-reduce {shown_size(size)}{memory}", f"troika {engine}", "PyTorch's Gloo", 2,
                          [(ours[index][size], theirs[size]) for ours, theirs in pairs],
                          GLOO_GOALS[size] if engine == "shm" else None)

    def mpi(self):
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            self.say("all-reduce, MPI: left out, there is no mpicc or no mpirun")
            return
        program = self.bench.scratch / "mpi_all_reduce"
        self.bench.run(["mpicc", "-O2", PEERS / "mpi_all_reduce.c", "-o", program, "-lm"])
        about = self.bench.run(["mpirun", "--version"])[0].splitlines()[0]
        flavour = "Open MPI" if "Open MPI" in about else "MPI"
        if self.options.quick:
            rounds = [(2, QUICK_MPI_SIZES, 1)]
        else:
            rounds = [(RANKS_WITH_A_CORE, [size], TIMES_AS_MANY_PAIRS) for size in MPI_SIZES]
            rounds += [(4, MPI_SIZES, 1), (8, MPI_SIZES, 1)]
        for ranks, sizes, times in rounds:
            of_size = f" of {shown_size(sizes[0])}" if len(sizes) == 1 else ""
            pairs = self.alternate(f"all-reduce{of_size}, {flavour}, {ranks} ranks",
                                   lambda: (self.ours("shm", ranks, sizes),
                                            self.ours("shm", ranks, sizes, "--own-memory")),
                                   lambda: self.mpirun(program, flavour, ranks, sizes), times)
            for size in sizes:
                for index, memory in enumerate(["", ", own memory"]):
                    yield row(f"all-reduce {shown_size(size)}{memory}", "troika shm", flavour, ranks,
                              [(ours[index][size], theirs[size]) for ours, theirs in pairs], MPI_GOAL)

    def mpirun(self, program, flavour, ranks, sizes):
        """Open MPI wants to be asked for more ranks than cores; where it has a core for each, also as it is by itself."""
        runs = [[]]
        if flavour == "Open MPI":
            anywhere = ["--oversubscribe", "--bind-to", "none"]
            runs = [anywhere, []] if ranks <= len(os.sched_getaffinity(0)) else [anywhere]
            if os.geteuid() == 0:
                runs = [[*flags, "--allow-run-as-root"] for flags in runs]
        times = {}
        for flags in runs:
            out = self.bench.run(["mpirun", *flags, "-n", ranks, program, self.options.budget, *sizes])[0]
            for line in out.splitlines():
                if re.match(r"\d+ ", line):
                    size, in_place, apart = line.split()
                    # Whichever is fastest for it; ours is in place.
                    times[int(size)] = min(times.get(int(size), float("inf")), float(in_place), float(apart))
        return times

    # The training loop of one's own.

    def own_module(self):
        for ranks, steps in [(2, 300)] if self.options.quick else [(2, 1000), (4, 400), (8, 150)]:
            recipe = self.bench.scratch / f"mlp-{ranks}.toml"
            text = RECIPE.read_text().replace("global_batch_size = 64", f"global_batch_size = {32 * ranks}")
            recipe.write_text(text)
            budget = 1 if self.options.quick else 3

            def ours():
                return self.troika("mlp", "--ranks", ranks, "--budget", budget, "--no-sync")

            def theirs():
                found = self.torchrun(ranks, "ddp_mlp.py", recipe, "--steps", steps)
                return statistics.median(found["step_seconds"][steps // 3:])

            pairs = self.alternate(f"own module, {ranks} ranks", ours, theirs)
            yield row("own MLP, a step", "troika", "PyTorch DDP", ranks,
                      [(1 / found["steps_per_second"], step) for found, step in pairs], OWN_MODULE_GOAL)
            yield row("the same, steps kept", "troika", "without averaging", ranks,
                      [(1 / found["steps_per_second"], 1 / found["unsynchronised_steps_per_second"])
                       for found, _ in pairs], STEPS_KEPT_GOAL.get(ranks))
            yield row("the same, steps kept", "troika", "a barrier alone", ranks,
                      [(1 / found["steps_per_second"], 1 / found["barrier_steps_per_second"])
                       for found, _ in pairs])

    def start(self):
        def ours():
            began = time.time()
            return self.troika("mlp", "--ranks", 2, "--steps", 1, "--repeats", 1)["first_step_at"] - began

        def theirs():
            began = time.time()
            return self.torchrun(2, "ddp_mlp.py", RECIPE, "--steps", 1)["first_step_at"] - began

        self.alternate("start", ours, theirs)  # the files are in memory then
        yield row("command to first step", "troika", "torchrun, DDP", 2, self.alternate("start", ours, theirs),
                  START_GOAL)

    def table(self):
        return (row(*one) for one in tables.loading(self))

    def images(self):
        return (row(*one) for one in images.loading(self))

    def text(self):
        return (row(*one) for one in tokenizing.tokenizing(self))

    def checkpoint(self):
        return (row(*one) for one in checkpoints.rows_of(self))

    def exported(self):
        return (row(*one) for one in programs.training(self))

    def loose(self):
        for work in (servers, compression, loose):
            yield from (row(*one) for one in work.training(self))


GROUPS = {"gloo": Rows.gloo, "mpi": Rows.mpi, "own-module": Rows.own_module, "start": Rows.start, "table": Rows.table,
          "images": Rows.images, "text": Rows.text, "checkpoint": Rows.checkpoint,
          "exported": Rows.exported, "loose": Rows.loose}


def row(work, ours, peer, ranks, pairs, goal=None):
    """`pairs` are times, ours and the peer's; `goal` is what the ratio should reach, where there is such a thing."""
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    return {"work": work, "ranks": ranks, "ours": ours, "peer": peer,
            "ours_seconds": statistics.median(mine for mine, _ in pairs),
            "peer_seconds": statistics.median(theirs for _, theirs in pairs),
            "ratio": statistics.median(ratios), "smallest_ratio": ratios[0], "largest_ratio": ratios[-1],
            "goal": goal, "pairs": pairs}


def lines_of(rows):
    """For a table."""
    yield ["work", "ranks", "ours", "time", "peer", "time", "ratio", "goal", "of the pairs"]
    for one in rows:
        yield [one["work"], str(one["ranks"]), one["ours"], shown_time(one["ours_seconds"]), one["peer"],
               shown_time(one["peer_seconds"]), f"{one['ratio']:.2f}",
               "" if one["goal"] is None else f"{one['goal']:g}",
               f"{one['smallest_ratio']:.2f} to {one['largest_ratio']:.2f}"]
