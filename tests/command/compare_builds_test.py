"""scripts/compare_builds.py finds a difference, and none where there is none."""

import os
import pathlib
import sys

import command
from command import CommandTest, Process

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "compare_builds.py"
TROIKA = os.environ["TROIKA"]


class CompareBuilds(CommandTest):
    def compared(self, new):
        words = [sys.executable, SCRIPT, TROIKA, new, "--only", "optimizer.kind=lamb optimizer.schedule"]
        return Process(words, self.folder, TMPDIR=str(self.folder)).wait()

    def test_a_build_is_the_same_as_itself(self):
        done = self.compared(TROIKA)
        self.succeeds(done)
        self.assertRegex(done.out.splitlines()[-1], r"^1 compared in \d+ s: every number is the same$")

    def test_another_seed_is_a_difference(self):
        other = self.folder / "other"
        other.write_text(f'#!/bin/sh\nexec "{TROIKA}" "$@" --set seed=3\n')
        other.chmod(0o755)
        done = self.compared(other)
        self.assertEqual(done.status, 1, str(done))
        self.assertRegex(done.out.splitlines()[-1], r"first difference .*optimizer\.kind=lamb.*metrics\.jsonl:1: loss: ")


if __name__ == "__main__":
    command.main()
