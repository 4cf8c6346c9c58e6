"""`troika bench`: that it measures what it says, refuses what it cannot, and draws it. And the rows of `make bench`.

TROIKA_TEST_PYTHON, where it is set, is a Python that has PyTorch, which they are compared with.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types
import unittest
import xml.etree.ElementTree
from unittest import mock

from command import CommandTest, main, slow, wait_until
from launchers import PATIENCE_SECONDS

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
sys.path.insert(0, str(BENCH))

import rows  # noqa: E402
import runs  # noqa: E402


# Both ranks' batches in one process, whose gradients are the average that `troika bench mlp` takes: a step on the first
# batch, then five on the first five.
PEER_IN_ONE_PROCESS = """
import json, sys, tomllib
import torch
sys.path.insert(0, sys.argv[1])
import ddp_mlp
recipe = tomllib.load(open(sys.argv[2], "rb"))
ranks = []
for rank in range(2):
    torch.manual_seed(1337 + rank)
    batches = ddp_mlp.make_batches(recipe["model"], recipe["train"]["micro_batch_size"], 64)
    ranks.append((batches, ddp_mlp.Mlp(recipe["model"])))
model = ranks[0][1]
optimizer = ddp_mlp.make_optimizer(model.parameters(), recipe["optimizer"])
with torch.no_grad():
    before = model(*ranks[0][0][4]).item()
for step in [0, 0, 1, 2, 3, 4]:
    optimizer.zero_grad()
    losses = [model(*batches[step]) for batches, _ in ranks]
    (sum(losses) / len(ranks)).backward()
    optimizer.step()
print(json.dumps({"loss": losses[0].item(), "before": before, "batch": ranks[0][0][0][0].shape,
                  "shapes": [parameter.shape for parameter in model.parameters()]}))
"""


class Bench(CommandTest):
    def found(self, *arguments):
        return json.loads(self.succeeds(self.troika("bench", *arguments, "--json")).out)

    def test_every_engine_of_one_host_is_measured_and_checked(self):
        found = self.found("comm", "--ranks", 2, "--sizes", "4,64K", "--budget", 0)
        self.assertEqual([(one["engine"], one["bytes"]) for one in found["results"] if one["engine"] != "mpi"],
                         [("shm", 4), ("shm", 65536), ("gloo", 4), ("gloo", 65536)])
        for one in found["results"]:
            self.assertEqual(one["ranks"], 2)
            self.assertLessEqual(one["fastest_seconds"], one["seconds"])
            self.assertLessEqual(one["seconds"], one["slowest_seconds"])
            self.assertAlmostEqual(one["bus_bandwidth"], one["bytes"] / one["seconds"])  # 2 (n-1)/n is 1
        # Each engine is measured, or said why not; the one without an exchange is neither.
        measured = {one["engine"] for one in found["results"]}
        left_out = {one["engine"] for one in found["left_out"]}
        self.assertEqual(measured | left_out, {"shm", "gloo", "mpi", "nccl"})
        self.assertFalse(measured & left_out)
        self.assertTrue(all(one["reason"] for one in found["left_out"]))

    def test_a_device_that_is_not_here_is_refused_once(self):
        done = self.fails(self.troika("bench", "comm", "--ranks", 2, "--device", "hpu"), 2, "no hpu device")
        self.assertEqual(len(done.err.splitlines()), 2, str(done))
        found = self.found("comm", "--ranks", 2, "--device", "cpu", "--engine", "shm", "--sizes", "4K", "--budget", 0)
        self.assertEqual([one["device"] for one in found["results"]], ["cpu"])

    def test_an_interrupt_ends_it(self):
        for words in (("bench", "comm", "--ranks", 2, "--sizes", "4", "--budget", 60), ("doctor",)):
            with self.subTest(words[0]):
                process = self.start(*words)
                wait_until(process.children, "ranks")
                os.kill(process.pid, signal.SIGINT)
                done = process.wait()
                self.assertEqual((done.status, done.out), (130, ""), str(done))

    def test_every_operation(self):
        found = self.found("comm", "--ranks", 3, "--engine", "shm", "--op", "all", "--sizes", "1000", "--budget", 0)
        self.assertEqual(sorted(one["operation"] for one in found["results"]), sorted(found["bus_bandwidth_formula"]))
        self.assertEqual(len(found["results"]), 8)
        self.assertIn("2 (n-1)/n", found["bus_bandwidth_formula"]["all_reduce"])
        one, = (each for each in found["results"] if each["operation"] == "all_reduce")
        self.assertAlmostEqual(one["bus_bandwidth"] / (one["bytes"] / one["seconds"]), 4 / 3)

    def test_a_plot_is_a_picture(self):
        plot = self.folder / "comm.svg"
        done = self.succeeds(self.troika("bench", "comm", "--ranks", 2, "--engine", "shm,gloo", "--sizes", "4:4K",
                                         "--budget", 0, "--plot", plot))
        self.assertIn("bus bandwidth of all_reduce = algorithm bandwidth x 2 (n-1)/n", done.out)
        picture = xml.etree.ElementTree.parse(plot).getroot()
        lines = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
        self.assertEqual([len(line.get("points").split()) for line in lines], [6, 6, 6, 6])

    def test_what_is_no_size_operation_or_engine(self):
        for flag, value in (("--sizes", "4X"), ("--sizes", "3"), ("--op", "all_reduse"), ("--engine", "shn")):
            self.fails(self.troika("bench", "comm", "--ranks", 2, flag, value), 2, value)
        self.fails(self.troika("bench", "comm", "--ranks", 1), 2, "no peer to exchange data with")

    def test_nccl_where_it_cannot_be_used(self):
        done = self.fails(self.troika("bench", "comm", "--ranks", 2, "--engine", "nccl"), 2, "nccl")
        why, hint = done.err.splitlines()
        self.assertRegex(why, "engine nccl (cannot be used: NCCL, between GPUs: this process sees no GPU|"
                              r"is not built: NCCL, between GPUs: there is no plug-in for it \(libtroika_nccl\.so\), "
                              "which is built where NCCL and the CUDA toolkit are found)$")
        self.assertRegex(hint, '^hint: write comm.engine = "auto" ')

    def test_an_engine_that_exchanges_nothing(self):
        for engines in ("fake", "shm,fake"):
            done = self.fails(self.troika("bench", "comm", "--ranks", 2, "--engine", engines), 2, "'fake'", "nothing")
            self.assertNotIn("wrong result", done.err)
        self.fails(self.troika("bench", "mlp", "--ranks", 2, "--engine", "fake"), 2, "'fake'", "nothing")
        for kind in ("comm", "mlp"):
            done = self.fails(self.troika("bench", kind, "--ranks", 2, "--engine", "shn"), 2, "'shn'",
                              "engines: auto, shm")
            self.assertNotIn("fake", done.err)

    def test_a_range_of_sizes_that_is_backwards(self):
        self.fails(self.troika("bench", "comm", "--ranks", 2, "--sizes", "4,64M:4"), 2, "64M:4", "backwards")

    def test_a_plot_that_cannot_be_written_is_told_before_anything_is_measured(self):
        # A minute for each size, of which not one is spent.
        arguments = ("bench", "comm", "--ranks", 2, "--engine", "shm", "--budget", 60, "--plot")
        done = self.fails(self.troika(*arguments, "nowhere/comm.svg"), 7, "nowhere")
        self.assertLess(done.seconds, 30)
        done = self.fails(self.troika(*arguments, "text"), 2, "text", "folder")
        self.assertLess(done.seconds, 30)

    def test_steps_of_a_small_model(self):
        found = self.found("mlp", "--ranks", 2, "--steps", 20, "--repeats", 3, "--no-sync")
        self.assertEqual((found["ranks"], found["steps"], found["repeats"]), (2, 20, 3))
        self.assertGreater(found["steps_per_second"], 0)
        self.assertAlmostEqual(found["of_unsynchronised"],
                               found["steps_per_second"] / found["unsynchronised_steps_per_second"])
        self.assertAlmostEqual(found["of_barrier"], found["steps_per_second"] / found["barrier_steps_per_second"])


class Rows(CommandTest):
    """The first table of `make bench`."""

    def test_ratios_are_taken_within_pairs(self):
        one = rows.row("a", "ours", "theirs", 2, [(1, 2), (1, 4), (3, 9)], 2.5)
        self.assertEqual((one["ratio"], one["smallest_ratio"], one["largest_ratio"]), (3, 2, 4))
        self.assertEqual((one["ours_seconds"], one["peer_seconds"]), (1, 4))
        head, line, without_goal = rows.lines_of([one, {**one, "goal": None}])
        self.assertEqual(line, ["a", "2", "ours", "1.00 s", "theirs", "4.00 s", "3.00", "2.5", "2.00 to 4.00"])
        self.assertEqual(without_goal[head.index("goal")], "")
        self.assertEqual([rows.shown_size(size) for size in (4, 4096, 4 << 20)], ["4 B", "4 KB", "4 MB"])
        self.assertEqual([rows.shown_time(time) for time in (2e-6, 2e-3, 2)], ["2.0 us", "2.00 ms", "2.00 s"])

    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_the_small_model_does_the_work_of_its_peer(self):
        """The peer's model, batches and optimiser, from the same random numbers, have the same loss in the end."""
        found = json.loads(self.succeeds(self.troika("bench", "mlp", "--ranks", 2, "--steps", 5, "--repeats", 1,
                                                     "--json")).out)
        peer = self.folder / "peer.py"
        peer.write_text(PEER_IN_ONE_PROCESS)
        done = subprocess.run([TEST_PYTHON, peer, rows.PEERS, rows.RECIPE], capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        theirs = json.loads(done.stdout)
        self.assertEqual(theirs["shapes"], [[128, 64], [128], [128, 128], [128], [10, 128], [10]])
        self.assertEqual(theirs["batch"], [32, 64])
        self.assertAlmostEqual(found["loss"] / theirs["loss"], 1, delta=1e-5)
        # As much as a step changes.
        self.assertGreater(abs(theirs["before"] / theirs["loss"] - 1), 1e-3)

    @slow
    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_each_group_is_measured_against_its_peer(self):
        runner = runs.Runner(self.folder)
        runner.options = types.SimpleNamespace(troika=os.environ["TROIKA"], peer_python=TEST_PYTHON, quick=True,
                                               pairs=1, budget=0.01)
        said = []
        found = {}
        # As --quick has it, less the larger sizes.
        with mock.patch.object(rows, "GLOO_SIZES", [4096]), mock.patch.object(rows, "QUICK_MPI_SIZES", [4, 4096]):
            # Tables, images, checkpoints and slow links take minutes, and programs or rights of their own.
            for name in ("gloo", "mpi", "own-module", "start"):
                found[name] = list(rows.GROUPS[name](rows.Rows(runner, said.append)))
        works = {name: [(one["work"], one["ours"]) for one in measured] for name, measured in found.items()}
        self.assertEqual(works["gloo"], [("all-reduce 4 KB", "troika shm"),
                                         ("all-reduce 4 KB, own memory", "troika shm"),
                                         ("all-reduce 4 KB", "troika gloo")])
        self.assertEqual([work for work, _ in works["own-module"]],
                         ["own MLP, a step", "the same, steps kept", "the same, steps kept"])
        self.assertEqual(works["start"], [("command to first step", "troika")])
        if shutil.which("mpicc") and shutil.which("mpirun"):
            self.assertEqual([work for work, _ in works["mpi"]],
                             ["all-reduce 4 B", "all-reduce 4 B, own memory",
                              "all-reduce 4 KB", "all-reduce 4 KB, own memory"])
        else:
            self.assertIn("all-reduce, MPI: left out, there is no mpicc or no mpirun", said)
        for one in sum(found.values(), []):
            self.assertEqual((one["ranks"], len(one["pairs"])), (2, 1))
            ours, theirs = one["pairs"][0]
            self.assertGreater(min(ours, theirs), 0)
            self.assertAlmostEqual(one["ratio"], theirs / ours)


if __name__ == "__main__":
    main()
