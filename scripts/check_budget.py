#!/usr/bin/env python3
"""Compares what tests took with tests/budget.json: scripts/check_budget.py RESULTS.xml [--update]

RESULTS.xml is what `ctest --output-junit` writes. A test that took more than double its seconds in tests/budget.json is
told, one that took more than four times is an error: tests share the cores with their neighbours, whose turn is another
in each run. One without an entry has UNKNOWN_SECONDS. Where the machine is slower today than
the one that the budget was measured on, or has other work, half of the tests exceed their budgets: all budgets then
grow by the median of these ratios. --update writes what was measured into the file instead, after `make test-all`.
"""
import json
import statistics
import sys
import xml.etree.ElementTree as ElementTree

from tree import ROOT

BUDGET = ROOT / "tests" / "budget.json"
UNKNOWN_SECONDS = 5.0
FLOOR_SECONDS = 10.0  # below it, the start of processes and of waits makes the difference
MEASURED_SECONDS = 2.0  # of tests that say something of the machine's speed
TELL, FAIL = 2.0, 4.0  # times its budget


def seconds_of(results):
    """{test: seconds} of the tests that ran to their end."""
    cases = ElementTree.parse(results).getroot().iter("testcase")
    return {case.get("name"): float(case.get("time")) for case in cases if case.get("status") == "run"}


def slowness_of(seconds, budget):
    """By what the machine is slower than the budget's; 1 where it is faster."""
    ratios = [taken / budget[name] for name, taken in seconds.items() if budget.get(name, 0) >= MEASURED_SECONDS]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


def findings_of(seconds, budget):
    """Yields (finding, whether it is an error)."""
    slowness = slowness_of(seconds, budget)
    machine = f" on a machine that is {slowness:.1f} times as slow" if slowness > 1 else ""
    for name, taken in sorted(seconds.items()):
        allowed = budget.get(name, UNKNOWN_SECONDS)
        if taken > max(TELL * allowed, FLOOR_SECONDS) * slowness:
            unknown = "" if name in budget else " for want of an entry"
            yield (f"{name} took {taken:.0f} s, its budget is {allowed} s{unknown}{machine}",
                   taken > FAIL * allowed * slowness)


def update(seconds, budget):
    budget = {**budget, **{name: round(max(taken, 0.1), 1) for name, taken in seconds.items()}}
    lines = ",\n".join(f"  {json.dumps(name)}: {budget[name]}" for name in sorted(budget))
    BUDGET.write_text("{\n" + lines + "\n}\n")


def main():
    seconds, budget = seconds_of(sys.argv[1]), json.loads(BUDGET.read_text())
    if sys.argv[2:] == ["--update"]:
        update(seconds, budget)
        return
    findings = list(findings_of(seconds, budget))
    for finding, is_error in findings:
        print(f"{BUDGET.relative_to(ROOT)}: {'error' if is_error else 'slow'}: {finding}")
    errors = sum(is_error for _, is_error in findings)
    if errors:
        sys.exit(f"check_budget: {errors} of {len(seconds)} tests are too slow")
    print(f"-- Budget: {len(seconds)} tests, {sum(seconds.values()):.0f} s, {len(findings)} above double its budget")


if __name__ == "__main__":
    main()
