"""The layouts of `make bench`: that they do the work of their peers, and what is shown of them.

TROIKA_TEST_PYTHON, where it is set, is a Python that has PyTorch, which they are compared with.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import types
import unittest
from unittest import mock

from command import CommandTest, main, slow
from launchers import PATIENCE_SECONDS

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
sys.path.insert(0, str(BENCH))

import bench  # noqa: E402
import layouts  # noqa: E402
import runs  # noqa: E402


class CheckedAndTimed(layouts.Layouts):
    """On one host the peer's ranks, which take long to start, are timed as soon as they have checked."""

    def __init__(self, bench):
        super().__init__(bench)
        self.timed = {}

    def say_peer(self, hosts, layout, *words):
        if isinstance(hosts, layouts.TwoHosts):
            return super().say_peer(hosts, layout, *words)
        if words[0] == "--check":
            self.timed[layout.key] = super().say_peer(hosts, layout, *words, "--steps", 2)
        return self.timed[layout.key]


class Layouts(CommandTest):
    @classmethod
    def setUpClass(cls):
        compiled = tempfile.TemporaryDirectory(prefix="troika-test-")  # PyTorch's modules, once for all tests
        cls.addClassCleanup(compiled.cleanup)
        cls.compiled = compiled.name

    def test_other_work_is_not_timed(self):
        same = {"parameters": 10, "largest_gradient_error": 1e-5}
        runs.same_work("one", 10, same)
        for found in (same | {"parameters": 11}, same | {"largest_gradient_error": 1e-3},
                      same | {"largest_gradient_error": float("nan")}):
            with self.assertRaisesRegex(runs.Failed, "one: "):
                runs.same_work("one", 10, found)

    def test_other_losses_are_not_timed(self):
        runs.same_losses("one", [7.6, 7.5], [7.6001, 7.5])
        for found in ([7.6, 7.502], [7.6, float("nan")]):
            with self.assertRaisesRegex(runs.Failed, "one: the loss of step 2 is 7.5"):
                runs.same_losses("one", [7.6, 7.5], found)

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
        self.assertEqual(said.count("| left out |"), len(layouts.LINK_LAYOUTS))

    def small_model(self):
        """In place of the recipes, for two steps."""
        small = {}
        for name in ("RECIPE", "FROZEN_RECIPE"):
            text = getattr(layouts, name).read_text().replace("model.layers.11.", "model.layers.1.")
            for size in ("layers = 2", "dim = 32", "heads = 2", "ffn_dim = 48", "vocab_size = 251", "seq_len = 16"):
                text, changed = re.subn(rf"(?m)^{size.split()[0]} = \d+$", size, text)
                self.assertEqual(changed, 1, size)
            small[name] = self.folder / f"{name}.toml"
            small[name].write_text(text)
        # What hangs is ended, with all that belongs to it, before this test is.
        impatient = mock.patch.object(runs, "RUN_SECONDS", PATIENCE_SECONDS)
        impatient.start()
        self.addCleanup(impatient.stop)
        return mock.patch.multiple(layouts, **small, QUICK_STEPS=2, QUICK_LINK_STEPS=2)

    def measure_small(self, chosen):
        runner = runs.Runner(self.folder)
        runner.options = types.SimpleNamespace(troika=os.environ["TROIKA"], peer_python=TEST_PYTHON, quick=True,
                                               pairs=1, layouts=chosen)
        runner.environment["PYTHONPYCACHEPREFIX"] = self.compiled
        with self.small_model():
            return CheckedAndTimed(runner).measured()

    def check_small(self, found, expected):
        """All of them do the same work: `expected` is the mesh and the peer of each."""
        self.assertEqual([(row["layout"], row["hosts"], row["peer"]) for row in found["rows"]],
                         [(name, hosts, peer) for name, hosts, peer, _ in expected])
        for row, (name, _, _, mesh) in zip(found["rows"], expected):
            with self.subTest(name):
                self.assertEqual((row["parameters"], row["targets_per_step"]), (found["rows"][0]["parameters"], 8 * 16))
                self.assertLess(row["largest_gradient_error"], 1e-4)
                # Of the same two steps, whatever the layout and the side.
                for losses in row["losses"].values():
                    self.assertEqual(len(losses), 2)
                    for step, loss in enumerate(losses):
                        self.assertAlmostEqual(loss, found["rows"][0]["losses"]["troika"][step], delta=1e-4)
                facts = row["pairs"][0]["troika"]["facts"]
                self.assertEqual({axis: size for axis, size in facts["mesh"].items() if size > 1}, mesh)
                for rate in (row["step_rate"], row["loop_rate"]):
                    self.assertGreater(min(rate["troika"], rate["pytorch"]), 0)
                    self.assertAlmostEqual(rate["ratio"], rate["troika"] / rate["pytorch"])
                self.assertGreater(min(row["peak_memory_bytes"].values()), row["peak_tensor_bytes"])
                self.assertGreater(row["peak_tensor_bytes"], 0)
        self.assertGreater(min(found["without_model_bytes"].values()), 0)
        shown = layouts.text_of(found)
        for name, hosts, peer, _ in expected:
            self.assertRegex(shown, rf"(?m)^\| {re.escape(name)} +\| {hosts} +\|.*\| {re.escape(peer)} +\|")
        return shown

    @slow
    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_every_layout_does_the_work_of_its_peer(self):
        here, data, pipeline = "one host", {"data": 2}, {"pipeline": 2}
        found = self.measure_small([layout.key for layout in layouts.LAYOUTS if not layout.is_frozen])
        self.check_small(found, [
            ("data = 2", here, "DDP", data),
            ("tensor = 2", here, "DTensor", {"tensor": 2}),
            ("pipeline = 2, 1f1b", here, "Schedule1F1B", pipeline),
            ("pipeline = 2, zb-h1", here, "ScheduleInterleavedZeroBubble", pipeline),
            ("data = 2, zero_stage = 1", here, "FSDP2, no reshard", data),
            ("data = 2, zero_stage = 2", here, "FSDP2, no reshard", data),
            ("data = 2, zero_stage = 3", here, "FSDP2, reshard", data)])
        self.assertNotIn("pipeline_over_data", found)

    @slow
    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_frozen_parameters_do_the_work_of_their_peer(self):
        row, = self.measure_small(["frozen"])["rows"]
        self.assertEqual((row["peer"], row["targets_per_step"]), ("FSDP2, reshard", 4 * 16))
        self.assertLess(row["largest_gradient_error"], 1e-4)
        for ours, theirs in zip(row["losses"]["troika"], row["losses"]["pytorch"], strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-4)

    @slow
    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_the_slow_link_beside_one_rank_alone(self):
        if layouts.link.why_not():
            self.skipTest(layouts.link.why_not())
        found = self.measure_small([layouts.SLOW_LINK])
        shown = self.check_small(found, [
            ("one rank alone", "one host", "one process", {}),
            ("data = 2", "200 Mbit/s, 5 ms", "DDP", {"data": 2}),
            ("pipeline = 2, 1f1b", "200 Mbit/s, 5 ms", "Schedule1F1B", {"pipeline": 2}),
            ("pipeline = 2, eager-1f1b", "200 Mbit/s, 5 ms", "Schedule1F1B", {"pipeline": 2})])
        alone, data, _, pipeline = (row["step_rate"]["troika"] for row in found["rows"])
        self.assertEqual(found["pipeline_over_data"]["troika"], pipeline / data)
        self.assertEqual(found["pipeline_over_one_rank"]["troika"], pipeline / alone)
        self.assertEqual(found["data_over_one_rank"]["troika"], data / alone)
        self.assertRegex(shown, r"pipeline = 2 trains \d+\.\d\d times as fast as one rank alone in troika")

    @slow
    @unittest.skipIf(not TEST_PYTHON, "TROIKA_TEST_PYTHON is not set: there is no PyTorch to compare with")
    def test_figures_are_written_and_shown(self):
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        figures = self.folder / "figures.json"
        words = ["bench.py", "--troika", os.environ["TROIKA"], "--peer-python", TEST_PYTHON, "--quick", "--pairs", "1",
                 "--works", "layouts", "--layouts", "pipeline-zb-h1", "--json", str(figures)]
        shown = io.StringIO()
        with self.small_model(), mock.patch.object(layouts, "Layouts", CheckedAndTimed), \
                mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(shown):
            bench.main()
        self.assertIn("| pipeline = 2, zb-h1 | one host", shown.getvalue())
        found = json.loads(figures.read_text())["layouts"]
        row, = found["rows"]
        self.assertEqual(row["pairs"][0]["troika"]["facts"]["mesh"]["pipeline"], 2)
        self.assertGreater(min(found["without_model_bytes"].values()), 0)


if __name__ == "__main__":
    main()
