"""A rank that dies or hangs in the middle of a pipeline schedule: every other rank names it, within two deadlines."""

import os
import pathlib
import re
import signal
import socket
import time

import command
from command import ENDLESS, CommandTest, wait_until
from launchers import reserved_port

RENDEZVOUS = 4
DEADLINE = 3
# Four ranks: pipeline 2 x data 2. Rank 2 is the second stage of rank 0, and holds up rank 3 over the data axis;
# rank 1 shares nobody with it but the world.
VICTIM, OTHERS = 2, (0, 1, 3)
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}


class PipelineFailures(CommandTest):
    def start_ranks(self, schedule):
        """Ranks that no launcher watches: each has to find out by itself."""
        port = reserved_port()
        sets = (ENDLESS, "train.evaluate_every_steps=0", "model.layers=4", "train.global_batch_size=8",
                "train.micro_batch_size=1", f"comm.timeout_seconds={DEADLINE}", "parallel.pipeline=2",
                f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={SCHEDULES[schedule]}")
        ranks = [self.start(*command.train_arguments(sets), "--overwrite", RANK=str(rank), WORLD_SIZE="4",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for rank in range(4)]
        metrics = self.run_folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, "steps of training")
        return ranks

    def ends_naming(self, ranks, victim, seconds):
        name = f"rank {VICTIM} (host {socket.gethostname()}, pid {victim})"
        for rank in OTHERS:
            done = ranks[rank].wait(30)
            self.assertEqual(done.status, RENDEZVOUS, str(done))
            self.assertIn(name, done.err, f"rank {rank}")
        self.assertLess(time.monotonic() - seconds, 2 * DEADLINE + 4)  # and what a busy machine takes

    def test_a_killed_rank_in_every_schedule(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule):
                ranks = self.start_ranks(schedule)
                killed = time.monotonic()
                os.kill(ranks[VICTIM].pid, signal.SIGKILL)
                self.ends_naming(ranks, ranks[VICTIM].pid, killed)

    def test_a_hang_names_label_stage_and_microbatch(self):
        ranks = self.start_ranks("1f1b")
        stopped = time.monotonic()
        os.kill(ranks[VICTIM].pid, signal.SIGSTOP)
        self.ends_naming(ranks, ranks[VICTIM].pid, stopped)
        waited = pathlib.Path(self.run_folder / "flight")
        self.assertTrue(waited.exists())
        shown = self.succeeds(self.troika("inspect", "runs/small")).out
        self.assertRegex(shown, r"(send|receive) (activation|gradient) \d \(for stage [01]\)")


if __name__ == "__main__":
    command.main()
