"""That a step is about as fast, beside PyTorch DDP, as docs/benchmarks.md says: the floors of `make bench`, measured.

TROIKA_TEST_PYTHON is a Python that has PyTorch. What is measured is a ratio of runs that alternate: it holds on any machine
that is not busy with other work meanwhile.
"""

import os
import pathlib
import sys
import unittest

from command import CommandTest, Process, main

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
sys.path.insert(0, str(BENCH))

import speed  # noqa: E402

ROWS = ("words-bf16", "bytes-bf16", "bytes-fp32", "resnet-bf16")


class Speed(CommandTest):
    @staticmethod
    def result(*ratios):
        return {"rows": [{"work": work, "floor": floor, "rates": {"eager": {"ratio": ratio}}} for work, floor, ratio in ratios]}

    def test_a_row_below_its_floor_is_named(self):
        found = speed.below_floors(self.result(("one", 1.5, 1.49), ("two", 1.5, 1.5), ("three", 0.0, 0.2)))
        self.assertEqual(found, ["one: 1.49 of DDP eager, and its floor is 1.50"])

    def test_there_are_floors(self):
        for row in ROWS:
            self.assertGreaterEqual(speed.WORKS[row].floor, 0.85, row)

    @unittest.skipUnless(TEST_PYTHON, "TROIKA_TEST_PYTHON, a Python with PyTorch, is not set")
    def test_no_row_is_below_its_floor(self):
        bench = [sys.executable, BENCH / "bench.py", "--troika", os.environ["TROIKA"], "--peer-python", TEST_PYTHON]
        done = Process([*bench, "--works", "speed", "--speed", *ROWS, "--quick", "--pairs", "3", "--floors"], self.folder).wait(540)
        print(done)
        self.assertEqual(done.status, 0)


if __name__ == "__main__":
    main()
