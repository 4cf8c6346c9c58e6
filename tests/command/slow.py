"""Tests that `make test` leaves to `make test-all`: the decorator @slow, and a script's --slow, which runs those alone."""

import sys
import unittest

ONLY_SLOW = "--slow" in sys.argv
if ONLY_SLOW:
    sys.argv.remove("--slow")


def slow(test):
    """Marks a method of a TestCase, or a function for run_tests() of launchers.py."""
    test.slow = True
    return test


def chosen(test, case=None):
    """Whether this run has it; a TestCase may be slow as a whole."""
    return (getattr(test, "slow", False) or getattr(case, "slow", False)) == ONLY_SLOW


class Loader(unittest.TestLoader):
    """Finds the tests of this run. A test named on the command line runs in any case."""

    def getTestCaseNames(self, case):
        return [name for name in super().getTestCaseNames(case) if chosen(getattr(case, name), case)]


def main(**settings):
    unittest.main(verbosity=2, testLoader=Loader(), **settings)
