#!/usr/bin/env python3
"""Times troika against PyTorch on the same work: the same model, batch, optimiser, ranks and threads.

Before a pair is timed, both compute the gradients of one step of the same batch from the same parameters, and have
to agree. Then troika and the peer run in turn, A B A B, so that whatever else the machine does hits both.
docs/benchmarks.md says how to read the tables, docs/benchmark-method.md how they are made.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import random
import re
import shlex
import signal
import sys
import tempfile

import layouts
import rows
import speed
from runs import Failed, Runner, laid_out, measured, parameters_in, same_work, say, summarised

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Work:
    name: str
    peer: str
    unit: str  # of the rate: what metrics.jsonl counts as tokens, or steps
    steps: int
    quick_steps: int

    @property
    def recipe(self):
        return HERE / "recipes" / f"{self.name}.toml"


WORKS = [
    Work("mlp", "ddp_mlp.py", "steps/s", 3000, 1000),
    Work("gpt-small", "ddp_gpt.py", "tokens/s", 30, 15),
    Work("gpt-large", "ddp_gpt.py", "tokens/s", 9, 6),
]
CHOICES = [*rows.GROUPS, *(work.name for work in WORKS), layouts.NAME, speed.NAME]


class Bench(Runner):
    def __init__(self, options, scratch):
        super().__init__(scratch)
        self.options = options

    def run_troika(self, work, steps, *sets):
        sets = [f"runs_dir={self.scratch}", f"train.steps={steps}", "checkpoint.every_minutes=0", *sets]
        return self.run([self.options.troika, "train", work.recipe, "--ranks", self.options.ranks, "--json",
                         "--overwrite", *(word for one in sets for word in ("--set", one))])

    def run_peer(self, work, *arguments, launcher=()):
        return self.run([self.options.peer_python, *launcher, HERE / "peers" / work.peer, work.recipe, *arguments])[0]

    def run_folder(self, work):
        return self.scratch / f"bench-{work.name}"

    def troika(self, work, steps):
        out, err = self.run_troika(work, steps)
        summary = json.loads(out)
        lines = (self.run_folder(work) / "metrics.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["step_seconds"] for line in lines]
        if len(seconds) != steps or summary["tokens"] % steps:
            raise Failed(f"troika ran {len(seconds)} steps of {work.name} instead of {steps}, or unequal ones")
        engine = re.search(r"engine (\w+)", err)
        facts = {"engine": engine[1] if engine else "unknown"}
        return measured(work.unit, seconds, summary["seconds"], summary["tokens"] // steps, facts)

    def peer(self, work, steps):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.options.ranks]
        found = json.loads(self.run_peer(work, "--steps", steps, launcher=launcher).splitlines()[-1])
        facts = {key: found[key] for key in ("torch", "threads", "parameters")}
        return measured(work.unit, found["step_seconds"], found["seconds"], found["targets_per_step"], facts)

    def check(self, work):
        """The number of parameters, once both sides' gradients agree."""
        self.run_troika(work, 1, "debug.dump_steps=[1]")
        dump = self.run_folder(work) / "dump" / "step-1"
        found = json.loads(self.run_peer(work, "--check", dump))
        held = parameters_in(dump / "parameters.safetensors")
        same_work(work.name, held, found)
        return {"parameters": held, "largest_gradient_error": found["largest_gradient_error"]}

    def pair(self, work, steps, parameters):
        ours, theirs = self.troika(work, steps), self.peer(work, steps)
        if ours.targets_per_step != theirs.targets_per_step or theirs.facts["parameters"] != parameters:
            raise Failed(f"{work.name}: {ours.targets_per_step} targets a step and {parameters} parameters, but the "
                         f"peer has {theirs.targets_per_step} and {theirs.facts['parameters']}")
        return ours, theirs

    def measure(self, work):
        steps = work.quick_steps if self.options.quick else work.steps
        say(f"{work.name}: one step of both, to compare")
        checked = self.check(work)
        say(f"{work.name}: warm-up")
        self.pair(work, max(3, steps // 5), checked["parameters"])
        pairs = []
        for number in range(1, self.options.pairs + 1):
            pairs.append(self.pair(work, steps, checked["parameters"]))
            ours, theirs = pairs[-1]
            say(f"{work.name}: pair {number} of {self.options.pairs}, {steps} steps: "
                f"troika {ours.step_rate:.0f}, PyTorch DDP {theirs.step_rate:.0f} {work.unit}")
        return {"work": work.name, "unit": work.unit, "steps": steps, **checked,
                "targets_per_step": pairs[0][0].targets_per_step, **summarised(pairs, "pytorch_ddp"),
                "pairs": [{"troika": dataclasses.asdict(ours), "pytorch_ddp": dataclasses.asdict(theirs)}
                          for ours, theirs in pairs]}


def machine():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {"cpu": cpu[1] if cpu else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "load_average_before": round(os.getloadavg()[0], 2), "system": platform.platform()}


def table(works):
    lines = [["work", "unit", "parameters", "troika", "PyTorch DDP", "ratio", "of the pairs", "ratio of the whole loop"]]
    for work in works:
        step, loop = work["step_rate"], work["loop_rate"]
        lines.append([work["work"], work["unit"], f"{work['parameters']:,}", f"{step['troika']:,.0f}",
                     f"{step['pytorch_ddp']:,.0f}", f"{step['ratio']:.2f}",
                     f"{step['smallest_ratio']:.2f} to {step['largest_ratio']:.2f}",
                     f"{loop['ratio']:.2f} ({loop['smallest_ratio']:.2f} to {loop['largest_ratio']:.2f})"])
    return laid_out(lines)


def heading(result):
    host, versions = result["machine"], result["versions"]
    return (f"{host['cpu']}, {host['cores']} cores, load average {host['load_average_before']} before\n"
            f"troika {versions['troika']}, PyTorch {versions['torch']} (gloo, eager), fp32, "
            f"1 thread a rank; 1 warm-up and {result['alternations']} alternations\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--troika", default=HERE.parent / "build" / "troika", type=pathlib.Path, help="the command")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and safetensors")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, about ten minutes")
    parser.add_argument("--pairs", type=int, help="alternations of each work (default: 4; with --quick 2)")
    parser.add_argument("--works", nargs="+", choices=CHOICES, help="only these")
    parser.add_argument("--layouts", nargs="+", choices=layouts.CHOICES, default=layouts.CHOICES,
                        help=f"only these of the work {layouts.NAME}")
    parser.add_argument("--speed", nargs="+", choices=speed.CHOICES, default=speed.CHOICES, help=f"only these of the work {speed.NAME}")
    parser.add_argument("--floors", action="store_true",
                        help=f"fail where a row of the work {speed.NAME} is slower, beside DDP eager, than its floor; no other peer is timed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the models that are drawn (default: another in each run)")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write every run's figures")
    options = parser.parse_args()
    options.pairs = options.pairs or (2 if options.quick else 4)
    options.ranks = 2  # the recipes' batches are two microbatches
    options.budget = 0.1 if options.quick else 0.3  # seconds for a size of a collective
    options.troika = options.troika.resolve()
    return options


def measured_groups(bench, chosen):
    """Rows, and what has failed: a group that does loses its later rows, and nothing else."""
    measured_rows, failures = [], []
    for group, measure in rows.GROUPS.items():
        if group not in chosen:
            continue
        try:
            for row in measure(rows.Rows(bench, say)):
                measured_rows.append(row)
                say(" ".join(list(rows.lines_of([row]))[1]))
        except Failed as error:
            failures.append(f"{group}: {error}")
            say(failures[-1])
    return measured_rows, failures


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, and scratch removed
    host = machine()
    if host["load_average_before"] > 0.5 or host["cores"] < options.ranks:
        say(f"This machine is busy or small (load average {host['load_average_before']}, {host['cores']} cores for "
            f"{options.ranks} ranks): rates will be low and ratios uncertain")
    try:
        with tempfile.TemporaryDirectory(prefix="troika-bench-") as scratch:
            bench = Bench(options, pathlib.Path(scratch))
            version = bench.run([options.troika, "--version"])[0].strip()
            torch = bench.run([options.peer_python, "-c", "import torch; print(torch.__version__)"])[0].strip()
            chosen = options.works or CHOICES
            measured_rows, failures = measured_groups(bench, chosen)
            works = [bench.measure(work) for work in WORKS if work.name in chosen]
            spread = layouts.Layouts(bench).measured() if layouts.NAME in chosen else None
            steps = speed.Speed(bench).measured() if speed.NAME in chosen else None
    except (Failed, OSError) as error:
        sys.exit(f"bench: {error}")
    result = {"command": shlex.join(map(str, sys.argv)), "machine": host, "ranks": options.ranks,
              "alternations": options.pairs, "versions": {"troika": version, "torch": torch}, "rows": measured_rows,
              "works": works, "layouts": spread, "speed": steps}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(heading(result))
    if measured_rows:
        print(laid_out(list(rows.lines_of(measured_rows))) + "\n")
    if works:
        print(table(works) + "\n")
    if spread:
        print(layouts.text_of(spread))
    if steps:
        print(speed.text_of(steps))
        failures += speed.below_floors(steps) if options.floors else []
    if failures:
        sys.exit("bench: " + "; ".join(failures))


if __name__ == "__main__":
    main()
