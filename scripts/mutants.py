#!/usr/bin/env python3
"""Changes one line of the sources at a time and asks the quick tests whether they notice: `make mutants`, by hand.

    scripts/mutants.py [--seed TEXT] [--count 60] [--minutes 110] [--folders sync server] [--write docs/mutants.md]

A mutant is a changed comparison, sign or bound, a dropped statement, or two swapped arguments. Which ones are drawn follows from the
seed, which is the commit's hash unless it is given. Each is built and runs the tests of its folder, then those of its folder's users,
up to the first failure. One that does not compile is drawn again. What is changed is put back, also after Ctrl-C; so the tree has to
be committed first.
"""
import argparse
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST_TEST_SECONDS = 300
FOLDERS = ("sync", "server", "compress", "checkpoint", "loss", "optim", "data", "parallel")

# Which targets to build and which tests to run, the cheapest first.
RANKS = ("test_ranks", "^(ranks_one_host|ranks_zero|ranks_tensor|ranks_others)$")
OWN = ("test_own_module", "^(own_module|own_module_zero|own_module_pipeline|own_module_engines|own_module_mixed_precision)$")
PARITY = ("test_parity", "^parity_")


def commands(*names):
    return "troika", "^command_(" + "|".join(names) + ")$"


STAGES = {
    "sync": [("test_sync", "^test_sync$"), RANKS, OWN, commands("launched_training_test", "server_local_test", "simulate_sync_test")],
    "server": [("test_server", "^test_server$"), ("test_simulate", "^test_simulate$"), OWN,
               commands("server_local_test", "server_faults_test", "server_join_test", "server_islands_test", "simulate_sync_test")],
    "compress": [("test_compress", "^test_compress$"), RANKS, OWN],
    "checkpoint": [("test_checkpoint_format test_checkpoint", "^test_checkpoint(_format)?$"), ("test_chaos", "^test_chaos$"), RANKS, OWN,
                   commands("chaos_test", "launched_training_test", "own_checkpoint_test")],
    "loss": [("test_loss", "^test_loss$"), RANKS, commands("predict_test", "figures_test")],
    "optim": [("test_optim", "^test_optim$"), RANKS, OWN, commands("launched_training_test")],
    "data": [("test_data", "^test_data$"), RANKS,
             commands("table_script_test", "table_predict_test", "table_text_test", "launched_training_test", "generate_test")],
    "parallel": [("test_parallel_pipeline test_data_parallel", "^test_(parallel_pipeline|data_parallel)$"), OWN, RANKS, PARITY],
}

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SIGNS = {"+": "-", "-": "+", "+=": "-=", "-=": "+="}
# What only words a message, or names a thing: tests of numbers need not notice it.
WORDS = re.compile(r'"|throw |log_|#|static_assert|^\s*//|\btemplate\b|\bcheck\(|\breserve\(|std::move\(')
STATEMENT = re.compile(r"^\s+(?!return|using|case|break|continue|const |auto |std::|at::)[a-z_][\w.\->\[\]*]*(\(.*\)| [-+*/|&]?= .*);$")
CALL = re.compile(r"\b[a-z_]\w*\(([a-z_][\w.\->]*), ([a-z_][\w.\->]*)\)")


def mutations(line):
    """Yields (kind, changed line); None for a line that is dropped."""
    code = line.split("  //")[0]
    if WORDS.search(code):
        return
    for kind, table in (("comparison", COMPARISONS), ("sign", SIGNS)):
        for found in re.finditer(r" (" + "|".join(re.escape(one) for one in sorted(table, key=len, reverse=True)) + r") ", code):
            yield kind, code[:found.start(1)] + table[found[1]] + code[found.end(1):]
    for found in re.finditer(r"(?<![\w.{'])(\d{1,4})(?![\w.'])", code):
        yield "bound", code[:found.start(1)] + str(int(found[1]) + 1) + code[found.end(1):]
    for found in CALL.finditer(code):
        yield "swap", code[:found.start(1)] + found[2] + ", " + found[1] + code[found.end(2):]
    if STATEMENT.match(code):
        yield "drop", None


def candidates(folders):
    """{folder: {kind: [(path, line number from 0, changed line)]}}"""
    by_folder = {}
    for folder in folders:
        found = by_folder[folder] = {}
        for path in sorted((ROOT / "troika" / folder).rglob("*.cc")):
            for number, line in enumerate(path.read_text().splitlines()):
                for kind, changed in mutations(line):
                    found.setdefault(kind, []).append((path, number, changed))
    return by_folder


def draw(chance, sites):
    """Takes one out: each folder, and in it each kind, is as likely as the others."""
    folder = chance.choice(sorted(folder for folder, kinds in sites.items() if any(kinds.values())))
    kind = chance.choice(sorted(kind for kind, found in sites[folder].items() if found))
    found = sites[folder][kind]
    return folder, kind, *found.pop(chance.randrange(len(found)))


def run(words, log):
    return subprocess.run(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


class Judge:
    def __init__(self, build):
        self.build, self.log_path = build, build / "mutants.log"

    def compiles(self, targets):
        with self.log_path.open("w") as log:
            return run(["cmake", "--build", str(self.build), "-j", "2", "--target", *targets.split()], log) == 0

    def killer(self, tests):
        """The first test that fails, by ctest's name and, where it says so, by GoogleTest's or unittest's; None where all pass."""
        with self.log_path.open("w") as log:
            words = ["ctest", "--test-dir", str(self.build), "-R", tests, "-LE", "^slow$", "-j", "4", "--stop-on-failure",
                     "--output-on-failure", "--timeout", str(LONGEST_TEST_SECONDS)]
            if run(words, log) == 0:
                return None
        text = self.log_path.read_text(errors="replace")
        entry = re.search(r"\*\*\*(?:Failed|Timeout|Exception[^\n]*?)\s", text) and re.search(r"- (\S+) \((?:Failed|Timeout|[A-Z]\w+)", text)
        inner = re.search(r"\[  FAILED  \] (\S+\.\S+)|^(?:FAIL|ERROR): (\S+)", text, re.MULTILINE)
        name = entry[1] if entry else "?"
        return name + (f" ({inner[1] or inner[2]})" if inner else "")

    def judge(self, folder):
        """"invalid" where it does not compile; else what has killed it, or None."""
        for targets, tests in STAGES[folder]:
            if not self.compiles(targets):
                return "invalid"
            if killer := self.killer(tests):
                return killer
        return None


class Changed:
    """A file with one line changed, and as it was afterwards."""

    def __init__(self, path, number, line):
        self.path, self.before = path, path.read_text()
        lines = self.before.splitlines(keepends=True)
        lines[number] = "\n" if line is None else line + "\n"
        self.text = "".join(lines)

    def __enter__(self):
        self.path.write_text(self.text)

    def __exit__(self, *_):
        self.path.write_text(self.before)


def shown(path, number, changed):
    before = path.read_text().splitlines()[number].strip()
    where = f"{path.relative_to(ROOT / 'troika')}:{number + 1}"
    return where, before, "(dropped)" if changed is None else changed.strip()


def table(seed, rows, invalid):
    killed = sum(row[-1] is not None for row in rows)
    lines = [f"Seed `{seed}`: {killed} of {len(rows)} are killed by the quick tests; {invalid} more did not compile.", "",
             "| where | what | was | became | killed by |", "|---|---|---|---|---|"]
    for where, kind, before, after, killer in rows:
        cells = ["`" + text.replace("|", "\\|") + "`" for text in (before, after)]
        lines.append(f"| {where} | {kind} | {cells[0]} | {cells[1]} | {killer or '**nothing**'} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=110)
    parser.add_argument("--folders", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--write", type=pathlib.Path, help="a page to write the table to")
    options = parser.parse_args()
    if subprocess.run(["git", "status", "--porcelain", "troika"], cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        sys.exit("mutants: commit what is changed in troika/ first: lines are changed there, and put back")
    seed = options.seed or subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chance, sites, judge = random.Random(seed), candidates(options.folders), Judge(options.build)
    end, rows, invalid = time.monotonic() + 60 * options.minutes, [], 0
    while len(rows) < options.count and time.monotonic() < end:
        folder, kind, path, number, changed = draw(chance, sites)
        where, before, after = shown(path, number, changed)
        with Changed(path, number, changed):
            killer = judge.judge(folder)
        if killer == "invalid":
            invalid += 1
            continue
        rows.append((where, kind, before, after, killer))
        print(f"{len(rows)}: {where}: {kind}: {before}  ->  {after}\n   {killer or 'SURVIVES'}", flush=True)
    text = table(seed, rows, invalid)
    print(text)
    if options.write:
        options.write.write_text(text)
    return 0 if rows and sum(row[-1] is not None for row in rows) >= 0.9 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
