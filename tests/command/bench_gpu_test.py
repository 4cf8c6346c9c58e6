"""`make bench-gpu` at toy sizes on the CPU, and what it says without a GPU. Usage: bench_gpu_test.py OWN_RESNET

TROIKA_TEST_PYTHON, where it is set, is a Python that has PyTorch, which it compares with.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from command import CommandTest, main, slow
from launchers import PATIENCE_SECONDS, environment

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu" / "gpu.py"
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
OWN_RESNET = sys.argv.pop(1)
NO_GPU = 2
needs_pytorch = unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")


class BenchGpu(CommandTest):
    def bench(self, *words):
        return subprocess.run([sys.executable, SCRIPT, *map(str, words)], cwd=self.folder, capture_output=True, text=True,
                              env=environment(), timeout=PATIENCE_SECONDS)

    def tiny(self, *words):
        """Its table by work and side, and its figures."""
        file = self.folder / "figures.json"
        done = self.bench("--device", "cpu", "--tiny", "--troika", os.environ["TROIKA"], "--own-resnet", OWN_RESNET,
                          "--peer-python", TEST_PYTHON, "--json", file, *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line] for line in lines[2:]]
        return {(row[0], row[2]): row for row in rows}, json.loads(file.read_text())

    @unittest.skipIf(pathlib.Path("/dev/nvidiactl").exists(), "this machine has a GPU")
    def test_without_a_gpu_it_says_so_in_one_line(self):
        for words in ((), ("--look",)):
            done = self.bench(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (
                NO_GPU, "", "bench-gpu: there is no GPU here: NVIDIA's driver (libcuda.so.1) is not installed\n"))
        self.assertEqual(self.bench("--look", "--device", "cpu").returncode, 0)

    @needs_pytorch
    def test_every_work_against_eager_pytorch(self):
        rows, figures = self.tiny("--pairs", 2, "--no-compile")
        self.assertEqual(list(rows), [("gpt2", "troika"), ("gpt2", "PyTorch eager"), ("resnet50", "troika"),
                                      ("resnet50", "PyTorch eager"), ("two-ranks", "troika, two ranks"),
                                      ("two-ranks", "troika, one rank")])
        for (work, _), (_, unit, _, rate, ratio, _, mfu) in rows.items():
            self.assertEqual(unit, "images/s" if work == "resnet50" else "tokens/s")
            self.assertGreater(float(rate.replace(",", "")), 0)
            self.assertGreater(float(ratio), 0)
            self.assertEqual(bool(mfu), work != "resnet50")
        for one in figures["works"]:
            for rates in one["rates"].values():
                self.assertEqual(len(rates), 2)

    @slow
    @needs_pytorch
    def test_against_compiled_pytorch(self):
        rows, _ = self.tiny("--pairs", 1, "--works", "gpt2", "resnet50")
        self.assertIn(("gpt2", "torch.compile"), rows)
        self.assertIn(("resnet50", "torch.compile"), rows)


if __name__ == "__main__":
    main()
