"""Runs that are killed while they take a checkpoint, call by call on files, and started again until they are finished;
and runs whose disk fails. tests/chaos/file_layer.h has what is preloaded."""

import collections
import os
import random
import re
import signal
import sys

import command
from command import slow
from going_on import GoingOnTest

LAYER = sys.argv.pop(1)
DATA, RANK_DIED, STORAGE = 3, 5, 7
STEPS, RANKS = 12, 2
PHASES = ("copy", "write", "fsync", "rename", "commit", "clean_up")
MAKE_FOLDER, WRITE, SYNC, SYNC_FOLDER, RENAME = "0", "2", "3", "4", "7"  # kinds of calls
QUICK, ALL = 4, 40
RECIPE = f"""
name = "small"
[model]
kind = "mlp"
input_dim = 8
hidden_dims = [16]
output_dim = 4
[data]
kind = "random"
[train]
steps = {STEPS}
global_batch_size = 4
micro_batch_size = 1
precision = "fp32"
[optimizer]
kind = "adamw"
lr = 0.01
[parallel]
zero_stage = 1
[checkpoint]
every_steps = 2
keep = 2
"""

Call = collections.namedtuple("Call", "rank phase number kind count path")


class Chaos(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)
        self.report, self.done = self.folder / "report", self.folder / "done"

    def run_with(self, *sets, plan=None):
        """A run on files that are watched; `plan` is "RANK PHASE NUMBER ACTION SHARE"."""
        for path in (self.report, self.done):
            path.unlink(missing_ok=True)
        done = self.train(*sets, ranks=RANKS, LD_PRELOAD=LAYER, TROIKA_CHAOS_ROOT=self.folder / "runs",
                          TROIKA_CHAOS_REPORT=self.report, TROIKA_CHAOS_PLAN=plan, TROIKA_CHAOS_DONE=self.done)
        if plan:
            self.assertTrue(self.done.exists(), f"no such call: {plan}\n{done}")
        return done

    def calls(self):
        return [Call(*line.split(" ", 5)) for line in self.report.read_text().splitlines()]

    def whole(self):
        """A run that is not disturbed, named "whole": its calls."""
        self.succeeds(self.run_with("name=whole"))
        return self.calls()

    def plans(self, calls, number):
        """So many kills, all phases alike, at calls that come in every run: of two ranks either may be the one that makes a folder."""
        certain = collections.Counter((call.rank, call.phase) for call in calls if call.kind not in (MAKE_FOLDER, SYNC_FOLDER))
        by_phase = {phase: [call for call in calls if call.phase == phase and int(call.number) < certain[call.rank, phase]]
                    for phase in PHASES}
        draw = random.Random(35)
        for i in range(number):
            call = draw.choice(by_phase[PHASES[(i + i // len(PHASES)) % len(PHASES)]])
            action = draw.choice(("kill", "kill-job"))
            yield f"{call.rank} {call.phase} {call.number} {action} {draw.random():.3f}"

    def expect_killed(self, done, plan):
        self.assertEqual(done.status, -signal.SIGKILL if "kill-job" in plan else RANK_DIED, f"{plan}\n{done}")
        self.assertFalse((self.run_folder / "summary.json").exists())

    def goes_on_with_the_same_bits(self, runs):
        """Every other run is killed once more as it goes on."""
        calls = self.whole()
        again = iter(self.plans(calls, 2 * runs))
        for i, plan in enumerate(self.plans(calls, runs)):
            with self.subTest(i=i, plan=plan):
                self.expect_killed(self.run_with(plan=plan), plan)
                if i % 2:
                    self.disturb(next(again))
                done = self.succeeds(self.train(ranks=RANKS))
                self.assertNotIn("is not used", done.err)
                self.expect_same_as("whole")
                self.assertEqual([line["step"] for line in self.metrics()], list(range(1, STEPS + 1)))
                # `keep`, and one more where it was killed before the oldest was removed.
                self.assertIn(self.steps_there(), ([10, 12], [8, 10, 12]))
                self.assertFalse([path for path in (self.run_folder / "checkpoints").rglob("*") if ".tmp" in path.name])
            self.succeeds(self.troika("checkpoint", "verify", "runs/small"))
            self.remove_run()

    def disturb(self, plan):
        """Kills the run where it comes so far: it has fewer steps to take."""
        rank, phase, number, action, share = plan.split()
        self.done.unlink()
        self.train(ranks=RANKS, LD_PRELOAD=LAYER, TROIKA_CHAOS_ROOT=self.folder / "runs",
                   TROIKA_CHAOS_PLAN=f"{rank} {phase} {int(number) // 4} {action} {share}", TROIKA_CHAOS_DONE=self.done)

    def remove_run(self):
        for path in sorted(self.run_folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def test_a_run_that_is_killed_goes_on_with_the_same_bits(self):
        self.goes_on_with_the_same_bits(QUICK)

    @slow
    def test_runs_that_are_killed_in_every_phase_go_on_with_the_same_bits(self):
        self.goes_on_with_the_same_bits(ALL)

    def test_lines_of_metrics_are_on_disk_before_their_checkpoint(self):
        """So that a machine that loses its power has no checkpoint behind the last line."""
        written, synced, manifests = "", 0, 0
        lines = (self.whole(), (self.folder / "runs" / "whole" / "metrics.jsonl").read_text())[1]
        for call in self.calls():
            if call.path.endswith("/metrics.jsonl"):
                if call.kind == WRITE:
                    written = lines[:len(written) + int(call.count)]
                elif call.kind == SYNC:
                    synced = len(written)
            elif call.kind == RENAME and call.path.endswith("/manifest.json"):
                step = int(re.search(r"/step-(\d+)/", call.path)[1])
                self.assertIn(f'{{"step": {step},', written[:synced])
                manifests += 1
        self.assertEqual(manifests, STEPS // 2)

    def test_a_disk_that_fails_costs_warnings_and_no_checkpoint_before(self):
        calls = self.whole()
        creates = [call for call in calls if call.rank == "1" and call.phase == "write" and call.kind == "1"]
        for error, message in ((28, "No space left on device"), (30, "Read-only file system")):
            done = self.succeeds(self.run_with(plan=f"1 write {creates[3].number} {error}+ 0"))
            # Of step 8, or of 6: whichever rank is first makes the folder of a step, which is a call as well.
            missing = re.search(r"warning: the checkpoint of step (\d+) is not there: rank 1 on host", done.err)
            self.assertIsNotNone(missing, str(done))
            first = int(missing[1])
            self.assertIn(first, (6, 8))
            self.assertIn(message, done.err)
            self.assertEqual(self.steps_there(), [first - 4, first - 2])
            self.succeeds(self.troika("checkpoint", "verify", "runs/small"))
            self.expect_same_as("whole")
            self.remove_run()
        # One that cannot be removed is no reason to say that the new one is not there.
        done = self.succeeds(self.run_with(plan="0 clean_up 0 5 0"))
        warnings = [line for line in done.error_lines if "warning" in line]
        self.assertEqual(len(warnings), 1, str(done))
        self.assertIn("warning: older checkpoints stay: cannot remove", warnings[0])
        self.assertEqual(self.steps_there(), [10, 12])

    def test_a_read_only_folder_is_refused(self):
        done = self.run_with(plan="0 run 0 30+ 0")
        self.fails(done, STORAGE, "Read-only file system", "hint: the file system is read-only")
        self.assertFalse((self.folder / "runs" / "small").exists())

    def test_a_checkpoint_may_be_deleted_while_it_is_read(self):
        """Before any of it is taken the one before is; behind that it is one clear error."""
        calls = self.whole()
        commits = [call for call in calls if call.phase == "commit"]
        self.expect_killed(self.run_with(plan=f"0 commit {commits[-1].number} kill 1"), "kill")
        newest = self.newest()
        done = self.run_with(plan="1 read 0 delete 0")
        self.assertRegex(done.err, rf"warning: the checkpoint of step {newest} is not used: .*No such file or directory")
        self.assertIn(f"going on from the checkpoint of step {newest - 2}", self.succeeds(done).err)
        self.expect_same_as("whole")


if __name__ == "__main__":
    command.main()
