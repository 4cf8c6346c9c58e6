"""Runs whose ranks die, and which their launcher starts again from the newest checkpoint."""

import os
import re
import signal

import command
from command import wait_until
from going_on import GoingOnTest, recipe_with_checkpoints

RANK_DIED = 5
SECONDS = 120
STEPS = 400


class Restarts(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(recipe_with_checkpoints(STEPS) + "[elastic]\nmax_restarts = 3\n")

    def launch(self, *sets, flags=()):
        return self.start(*command.train_arguments(sets), "--ranks", 2, *flags)

    def rank_of(self, process, rank, but=None):
        """The process of a rank, once it is there."""
        found = []

        def is_there():
            try:
                pid = process.ranks().get(rank)
            except (StopIteration, FileNotFoundError, ProcessLookupError):  # a child that is only just there, or gone
                return process.popen.poll() is not None
            if pid is not None and pid != but:
                found.append(pid)
            return found or process.popen.poll() is not None

        wait_until(is_there, "a rank's process")
        self.assertTrue(found, "the job has ended")
        return found[-1]

    def kill(self, process, rank):
        pid = self.rank_of(process, rank)
        os.kill(pid, signal.SIGKILL)
        return pid

    def expect_same_as(self, name):
        super().expect_same_as(name)
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, STEPS + 1)))

    def test_a_rank_that_is_killed_costs_no_bit(self):
        self.succeeds(self.train("name=whole", "parallel.zero_stage=1", ranks=2))
        process = self.launch("parallel.zero_stage=1")
        pids = []
        for rank in (1, 0):
            self.wait_for_checkpoint(process, self.newest() + 10)
            pids.append(self.kill(process, rank))
            wait_until(lambda: self.rank_of(process, rank) != pids[-1], "the ranks to be started again")
        done = self.succeeds(process.wait(SECONDS))
        lines = [line for line in done.error_lines if "starting again" in line]
        self.assertEqual(len(lines), 2, str(done))
        for restart, (line, rank, pid) in enumerate(zip(lines, (1, 0), pids), 1):
            self.assertRegex(line, rf"^warning: rank {rank} \(host \S+, pid {pid}\) was killed by signal 9 \(SIGKILL\).*"
                                   rf"; starting again from step \d+, restart {restart} of 3$")
            step = re.search(r"from step (\d+),", line)[1]
            self.assertIn(f"going on from the checkpoint of step {step} of {STEPS}", done.err)
        self.expect_same_as("whole")

    def test_a_crash_loop_ends_with_the_first_death(self):
        process = self.launch()
        self.wait_for_checkpoint(process, 5)
        pid = self.kill(process, 1)
        os.kill(self.rank_of(process, 1, but=pid), signal.SIGKILL)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, RANK_DIED, str(done))
        self.assertRegex(done.error_lines[-2], rf"^troika: rank 1 \(host \S+, pid {pid}\) was killed by signal 9 ")
        self.assertIn("restart 1 has come no further than step", done.err)
        self.assertEqual(sum("starting again" in line for line in done.error_lines), 1, str(done))

    def test_a_run_before_its_first_checkpoint_starts_from_its_first_step(self):
        self.succeeds(self.train("name=whole", ranks=2))
        never = ("checkpoint.every_steps=0",)
        process = self.launch(*never)
        wait_until(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.metrics_so_far()) > 2, "steps")
        self.kill(process, 1)
        done = self.succeeds(process.wait(SECONDS))
        self.assertIn("starting again from the first step, restart 1 of 3", done.err)
        self.expect_same_as("whole")

    def test_a_second_death_while_lost_steps_are_taken_again_is_no_crash_loop(self):
        self.succeeds(self.train("name=whole", ranks=2))
        process = self.launch("checkpoint.every_steps=0")
        wait_until(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.metrics_so_far()) > 60, "steps")
        self.kill(process, 1)
        wait_until(lambda: self.takes_steps_again(60), "steps that are taken again")
        self.kill(process, 0)
        done = self.succeeds(process.wait(SECONDS))
        self.assertIn("restart 2 of 3", done.err)
        self.expect_same_as("whole")

    def takes_steps_again(self, before):
        try:
            return 1 < len(self.metrics_so_far()) < before
        except FileNotFoundError:
            return False

    def metrics_so_far(self):
        return (self.run_folder / "metrics.jsonl").read_text().splitlines()

    def test_a_run_that_replaces_another_does_so_once(self):
        self.succeeds(self.train("name=whole", ranks=2))
        self.succeeds(self.train("train.steps=7", ranks=1))
        process = self.launch(flags=("--overwrite",))
        wait_until(lambda: not (self.run_folder / "summary.json").exists(), "the old run to be cleared away")
        self.wait_for_checkpoint(process, 10)
        self.kill(process, 1)
        done = self.succeeds(process.wait(SECONDS))
        self.assertEqual(done.err.count("overwriting the run"), 1, done.err)
        self.assertRegex(done.err, r"going on from the checkpoint of step \d+ of")
        self.expect_same_as("whole")

    def test_ctrl_c_is_no_death(self):
        process = self.launch()
        self.wait_for_checkpoint(process, 5)
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, 75, str(done))
        self.assertNotIn("starting again", done.err)


if __name__ == "__main__":
    command.main()
