#!/usr/bin/env python3
"""Changes lines of the sources, one at a time, and asks the quick tests whether they notice: `make mutants`, by hand.

    scripts/mutants.py [--seeds TEXT ...] [--count 60] [--minutes 110] [--folders sync server] [--write docs/mutants.md]
    scripts/mutants.py --again          # those that survived, after tests were added

A mutant is a changed comparison, sign or bound, a dropped statement, or two swapped arguments. Which ones are drawn follows from the
seed, which is the commit's hash unless it is given. All are built at once (scripts/mutant_sites.py), and the sources put back, also
after Ctrl-C; so the tree has to be committed first. Then each mutant runs the tests of its folder, then those of its folder's users, the
cheapest first, up to the first failure. One that does not compile is drawn again. build/mutants.json keeps what was found.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

from mutant_sites import HEADER, ROOT, VARIABLE, Changed, Mutant, candidates, draws

FOLDERS = ("sync", "server", "compress", "checkpoint", "loss", "optim", "data", "parallel")
MOST_BYTES = 16 << 30  # of a process: a changed bound may ask for all there is
SPARE = 1.5  # so many are drawn for one that compiles

# The tests of a folder and of its users, by stages: all of a stage run before the next one, the cheapest first.
RANKS = "ranks_one_host ranks_zero ranks_tensor ranks_others"
OWN = "own_module own_module_zero own_module_pipeline own_module_engines own_module_mixed_precision"
STAGES = {
    "sync": ["test_sync", "test_server test_simulate test_train test_data_parallel test_capi", RANKS, OWN,
             "command_launched_training_test command_server_local_test command_simulate_sync_test"],
    "server": ["test_server", "test_sync test_simulate test_train", "command_server_local_test command_server_faults_test",
               "command_server_join_test command_server_islands_test command_simulate_sync_test", "own_module"],
    "compress": ["test_compress", "test_sync test_server test_simulate", RANKS, OWN],
    "checkpoint": ["test_checkpoint_format test_checkpoint_commit test_checkpoint", "test_train test_inference test_chaos", RANKS, OWN,
                   "command_safetensors_roundtrip command_own_checkpoint_test command_launched_training_test command_chaos_test"],
    "loss": ["test_loss", "test_train test_models test_capi", RANKS, "command_figures_test command_predict_test"],
    "optim": ["test_optim", "test_sync test_server test_simulate test_data_parallel", RANKS, OWN, "command_launched_training_test"],
    "data": ["test_data", "test_train test_inference test_plan test_recipe",
             "command_table_text_test command_table_script_test command_generate_test command_evaluate_text_test",
             "command_launched_training_test command_table_predict_test command_predict_test", RANKS],
    "parallel": ["test_parallel_pipeline test_module_pipeline test_data_parallel", "test_capi test_train", OWN, RANKS, "parity_data parity_layouts_0"],
}


class Tests:
    """What ctest knows of the tests: how they are run, and how many seconds they take."""

    def __init__(self, build):
        listed = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], capture_output=True, text=True, check=True)
        self.build, self.by_name, self.passes = build, {}, {}
        for test in json.loads(listed.stdout)["tests"]:
            properties = {each["name"]: each["value"] for each in test.get("properties", [])}
            if "slow" not in properties.get("LABELS", []):
                self.by_name[test["name"]] = test.get("command"), properties

    def stage(self, names):
        return sorted((name for name in names.split() if name in self.by_name), key=self.seconds)

    def seconds(self, name):
        return float(self.by_name[name][1].get("COST", 1))

    def run(self, name, mutant):
        """Whether it passes, and what it says. One that takes ten times its seconds will not end."""
        command, properties = self.by_name[name]
        environment = {**os.environ, "GTEST_FAIL_FAST": "1", VARIABLE: str(mutant)}
        environment.update(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
        log_path = self.build / "mutants.log"
        with log_path.open("w") as log:
            process = subprocess.Popen(command, cwd=properties.get("WORKING_DIRECTORY", self.build), env=environment, stdout=log,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                code = process.wait(60 + 10 * self.seconds(name))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started and left as well
                except ProcessLookupError:
                    pass
                process.wait()
        text = log_path.read_text(errors="replace")
        return code == 0, text if code is not None else text + "\nit does not end\n"

    def passes_unchanged(self, name):
        if name not in self.passes:
            self.passes[name] = self.run(name, 0)[0]
        return self.passes[name]


def failed_test(text):
    """What GoogleTest or unittest calls the one that failed, or was under way at the end."""
    if found := re.search(r"\[  FAILED  \] ([\w/]+\.[\w/]+)|^(?:FAIL|ERROR): (\S+)", text, re.MULTILINE):
        return found[1] or found[2]
    begun = re.findall(r"\[ RUN      \] (\S+)", text)
    return begun[-1] if begun else ""


def reason_of(text):
    """The assertion: the lines behind GoogleTest's 'Failure', or unittest's error."""
    if found := re.search(r"\S+:\d+: Failure\n(?:.*\n){1,6}", text):
        return found[0]
    if found := re.findall(r"^\w*(?:Error|Exception): .*(?:\n(?!\n|=|-).*){0,3}", text, re.MULTILINE):
        return found[-1]
    return "\n".join(text.strip().splitlines()[-4:])


def judge(mutant, tests, depth):
    """Runs the tests of a stage up to the first that fails."""
    begin = time.monotonic()
    for name in tests.stage(STAGES[mutant.folder][depth]):
        passes, text = tests.run(name, mutant.number)
        if passes or not tests.passes_unchanged(name):
            continue
        inner = failed_test(text)
        mutant.killer = f"{name}: {inner}" if inner else name
        mutant.reason = reason_of(text)[:600]
        break
    mutant.seconds = round(mutant.seconds + time.monotonic() - begin, 1)
    mutant.stages = depth + 1


def judge_all(mutants, tests, end, keep):
    """The first stage of all, then the second of those that are left: what is cheap finds most."""
    for depth in range(max(map(len, STAGES.values()))):
        for mutant in mutants:
            if mutant.killer or mutant.stages > depth or depth >= len(STAGES[mutant.folder]) or time.monotonic() > end:
                continue
            judge(mutant, tests, depth)
            print(f"{mutant.number}: {mutant.where}: {mutant.kind}: {mutant.before}  ->  {mutant.after or '(dropped)'}\n   "
                  f"{mutant.killer or f'survives stage {depth + 1}'} ({mutant.seconds} s)", flush=True)
            keep()


def is_judged(mutant):
    return bool(mutant.killer) or mutant.stages >= len(STAGES[mutant.folder])


def targets_of(folders, tests, build):
    """The programs that the stages run. Tests in Python run the command."""
    targets = {"troika"}
    for name in (name for folder in folders for stage in STAGES[folder] for name in tests.stage(stage)):
        command = tests.by_name[name][0]
        if not command:  # ctest names no program that is not built
            targets.add(name)
            continue
        targets.update(pathlib.Path(each).name for each in command if each.startswith(str(build / "tests")) and os.path.isfile(each)
                       and os.access(each, os.X_OK))
    return sorted(targets)


def build_all(mutants, targets, build):
    """Builds them into one another's company. Returns those that compile."""
    header = build / "mutants.h"
    header.write_text(HEADER)
    while mutants:
        with Changed(mutants, header):
            result = subprocess.run(["cmake", "--build", str(build), "-j", "2", "--target", *targets, "--", "-k", "0"], cwd=ROOT, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        (build / "mutants-build.log").write_text(result.stdout)
        if result.returncode == 0:
            break
        wrong = {(found[1], int(found[2])) for found in re.finditer(r"(troika/[\w/]+\.cc):(\d+)(?::\d+)?: +(?:error|  required from)", result.stdout)}
        left = [each for each in mutants if not any(each.path == path and abs(each.line - line) <= 1 for path, line in wrong)]
        if len(left) == len(mutants):  # what a changed line declares is wrong where it is used
            left = [each for each in mutants if each.path not in {path for path, _ in wrong}]
        if len(left) == len(mutants):
            sys.exit("mutants: the build fails for another reason than a mutant: build/mutants-build.log")
        print(f"{len(mutants) - len(left)} do not compile", flush=True)
        mutants = left
    return mutants


def draw(seeds, count, folders):
    """A mutant a line: lines that several seeds draw are built once."""
    mutants, lines = [], {}
    for seed in seeds:
        taken, sites = 0, draws(random.Random(seed), candidates(folders), seed)
        for mutant in sites:
            if taken >= SPARE * count:
                break
            other = lines.setdefault((mutant.path, mutant.line), mutant)
            if other is not mutant and (other.seed == seed or other.built != mutant.built):
                continue
            taken += 1
            mutant.number = other.number = other.number or len(lines)
            mutants.append(mutant)
    return mutants


def find_again(mutant):
    """Where its line is by now; False where there is none."""
    mutant.stages, lines = 0, [line.strip() for line in (ROOT / mutant.path).read_text().splitlines()]
    places = [place for place, line in enumerate(lines, 1) if line == mutant.before]
    mutant.line = min(places, key=lambda place: abs(place - mutant.line), default=0)
    return mutant.line > 0


def table(seed, mutants):
    killed = sum(bool(each.killer) for each in mutants)
    lines = [f"Seed `{seed}`: {killed} of {len(mutants)} are killed.", "",
             "| where | what | was | became | killed by |", "|---|---|---|---|---|"]
    for each in mutants:
        cells = ["`" + text.replace("|", "\\|") + "`" if text else "(dropped)" for text in (each.before, each.after)]
        lines.append(f"| {each.where} | {each.kind} | {cells[0]} | {cells[1]} | {each.killer or '**nothing**'} |")
    return "\n".join(lines) + "\n"


def write_page(page, text):
    """What stands in front of the tables is written by hand."""
    mark = "<!-- What follows is printed by scripts/mutants.py -->\n"
    before = page.read_text().partition(mark)[0] if page.exists() else ""
    page.write_text(before + mark + "\n" + text)


def options_of():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", help="what the draws follow from; the commit's hash unless given")
    parser.add_argument("--count", type=int, default=60, help="mutants of each seed")
    parser.add_argument("--minutes", type=float, default=110)
    parser.add_argument("--folders", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--again", action="store_true", help="judge again those that survived")
    parser.add_argument("--write", type=pathlib.Path, help="a page to write the tables to")
    return parser.parse_args()


def main():
    options = options_of()
    if subprocess.run(["git", "status", "--porcelain", "troika"], cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        sys.exit("mutants: commit what is changed in troika/ first: lines are changed there, and put back")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end, kept, tests = time.monotonic() + 60 * options.minutes, options.build / "mutants.json", Tests(options.build)
    if options.again:
        mutants = [each for each in (Mutant(**one) for one in json.loads(kept.read_text())) if find_again(each)]
    else:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        mutants = draw(options.seeds or [commit], options.count, options.folders)
    mutants = build_all(mutants, targets_of(options.folders, tests, options.build), options.build)
    tests = Tests(options.build)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    seeds, shown = list(dict.fromkeys(each.seed for each in mutants)), []
    for seed in seeds:
        shown += [each for each in mutants if each.seed == seed][:options.count]
    judge_all(shown, tests, end, lambda: kept.write_text(json.dumps([dataclasses.asdict(each) for each in mutants], indent=1)))
    if left := sum(not is_judged(each) for each in shown):
        print(f"{left} are left: the time is over")
    judged = [[each for each in shown if each.seed == seed and is_judged(each)] for seed in seeds]
    text = "\n".join(table(seed, each) for seed, each in zip(seeds, judged))
    print(text)
    if options.write:
        write_page(options.write, text)
    return 0 if all(sum(bool(one.killer) for one in each) >= 0.9 * len(each) for each in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
