"""`troika train` as the ranks that real launchers start: the same losses as with ranks of its own.

TROIKA_TEST_PYTHON, where it is set, is a Python that has PyTorch, and so torchrun.
"""

import os
import shutil
import unittest

import command
from command import CommandTest, Process, end
from launchers import open_mpi

TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
SETS = ("train.precision=fp64", "train.deterministic=true", "comm.rendezvous_timeout_seconds=30")


class Launched(CommandTest):
    def joins(self, *launcher, **variables):
        self.succeeds(self.train(*SETS, ranks=2))
        process = Process([*launcher, os.environ["TROIKA"], *command.train_arguments(("name=launched", *SETS))],
                          self.folder, **variables)
        self.addCleanup(end, process)
        done = self.succeeds(process.wait())
        self.assertEqual(done.err.count("done: loss"), 1, str(done))
        self.assertEqual(self.losses(self.folder / "runs" / "launched"), self.losses())
        resolved = (self.folder / "runs/launched/recipe.toml").read_text()
        self.assertIn("\ndata = 2\n", resolved)

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is not installed")
        self.joins("mpirun", "-n", "2", **open_mpi())

    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no torchrun")
    def test_torchrun(self):
        self.joins(TEST_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")


if __name__ == "__main__":
    command.main()
