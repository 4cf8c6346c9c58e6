#!/usr/bin/env python3
"""Prints which of the slices of slow tests (0 to 7, cmake/Tests.cmake) is next: scripts/slow_slice.py [--passed N]

It is the one that passed longest ago on this machine, which the cache remembers. Where the cache holds nothing, as on a
machine that CI makes anew, it is the number of commits modulo 8.
"""
import subprocess
import sys

from cache import cache_root
from tree import ROOT

SLICES = 8


def mark(slice_number):
    return cache_root() / f"slow-slice-{slice_number}"


def number_of_commits():
    command = ["git", "-C", str(ROOT), "rev-list", "--count", "--first-parent", "HEAD"]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def next_slice():
    first = number_of_commits() % SLICES
    order = [(first + each) % SLICES for each in range(SLICES)]
    return min(order, key=lambda each: mark(each).stat().st_mtime if mark(each).exists() else 0)


def main():
    if sys.argv[1:2] == ["--passed"]:
        mark(int(sys.argv[2])).touch()
    else:
        print(next_slice())


if __name__ == "__main__":
    main()
