"""`troika bench`: that it measures what it says, refuses what it cannot, and draws it. And the layouts of `make bench`.

TROIKA_TEST_PYTHON, where it is set, is a Python that has PyTorch, which they are compared with.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from command import CommandTest, main

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
sys.path.insert(0, str(BENCH))

import layouts  # noqa: E402
import runs  # noqa: E402


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

    def test_every_operation(self):
        found = self.found("comm", "--ranks", 3, "--engine", "shm", "--op", "all", "--sizes", "1000", "--budget", 0)
        self.assertEqual(sorted(one["operation"] for one in found["results"]), sorted(found["bus_bandwidth_formula"]))
        self.assertEqual(len(found["results"]), 8)

    def test_a_plot_is_a_picture(self):
        plot = self.folder / "comm.svg"
        done = self.succeeds(self.troika("bench", "comm", "--ranks", 2, "--engine", "shm,gloo", "--sizes", "4:4K",
                                         "--budget", 0, "--plot", plot))
        self.assertIn("bus bandwidth of all_reduce = algorithm bandwidth x 2 (n-1)/n", done.out)
        picture = xml.etree.ElementTree.parse(plot).getroot()
        lines = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
        self.assertEqual([len(line.get("points").split()) for line in lines], [6, 6, 6, 6])

    def test_what_is_no_size_operation_or_engine(self):
        for flag, value in (("--sizes", "4X"), ("--op", "all_reduse"), ("--engine", "shn")):
            self.fails(self.troika("bench", "comm", "--ranks", 2, flag, value), 2, value)
        self.fails(self.troika("bench", "comm", "--ranks", 1), 2, "nobody to talk to")
        self.fails(self.troika("bench", "comm", "--ranks", 2, "--engine", "nccl"), 2, "nccl")

    def test_an_engine_that_exchanges_nothing(self):
        for engines in ("fake", "shm,fake"):
            done = self.fails(self.troika("bench", "comm", "--ranks", 2, "--engine", engines), 2, "'fake'", "nothing")
            self.assertNotIn("wrong result", done.err)

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


class Layouts(CommandTest):
    def test_other_work_is_not_timed(self):
        same = {"parameters": 10, "largest_gradient_error": 1e-5}
        runs.same_work("one", 10, same)
        for found in (same | {"parameters": 11}, same | {"largest_gradient_error": 1e-3},
                      same | {"largest_gradient_error": float("nan")}):
            with self.assertRaisesRegex(runs.Failed, "one: "):
                runs.same_work("one", 10, found)

    def test_ratios_are_taken_within_pairs(self):
        def measured(step_seconds, loop_seconds):
            return runs.measured("tokens/s", step_seconds, loop_seconds, 60, {})

        pairs = [(measured([9, mine, mine], 100), measured([9, 9, 3], 90)) for mine in (1, 2, 5)]
        found = runs.summarised(pairs, "peer")
        # The first third of the steps does not count: 60 / 1, 60 / 2, 60 / 5 against 60 / 6.
        self.assertEqual(found["step_rate"], {"troika": 30, "peer": 10, "ratio": 3, "smallest_ratio": 1.2,
                                              "largest_ratio": 6})
        self.assertEqual(found["loop_rate"]["ratio"], 0.9)

    def test_what_is_left_out_says_why(self):
        said = layouts.text_of({"rows": [], "left_out": "there is no link",
                                "without_model_bytes": {"troika": 1e6, "pytorch": 2e6}})
        self.assertIn("The slow link is left out: there is no link.", said)
        self.assertEqual(said.count("| left out |"), 2)

    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_a_layout_is_measured_against_its_peer(self):
        figures = self.folder / "figures.json"
        done = subprocess.run([sys.executable, BENCH / "bench.py", "--troika", os.environ["TROIKA"], "--peer-python",
                               TEST_PYTHON, "--quick", "--pairs", "1", "--works", "layouts", "--layouts",
                               "pipeline-zb-h1", "--json", figures], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("| pipeline = 2, zb-h1 | one host", done.stdout)
        found = json.loads(figures.read_text())["layouts"]
        row, = found["rows"]
        self.assertLess(row["largest_gradient_error"], 1e-4)
        self.assertEqual(row["targets_per_step"], 1024)
        self.assertEqual(row["pairs"][0]["troika"]["facts"]["mesh"]["pipeline"], 2)
        rate = row["step_rate"]
        self.assertAlmostEqual(rate["ratio"], rate["troika"] / rate["pytorch"])
        for side, peak in row["peak_memory_bytes"].items():
            self.assertGreater(peak, found["without_model_bytes"][side])


if __name__ == "__main__":
    main()
