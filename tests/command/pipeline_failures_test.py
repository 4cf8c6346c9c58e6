"""A rank that dies or hangs in the middle of a pipeline schedule: every other rank names it, within two deadlines."""

import json
import os
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
TRANSFER = r"(send|receive) (activation|gradient) \d+ \(for stage [01]\)"
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}


class PipelineFailures(CommandTest):
    def start_ranks(self, schedule, deadline=DEADLINE):
        """Ranks that no launcher watches: each has to find out by itself."""
        port = reserved_port()
        sets = (ENDLESS, "train.evaluate_every_steps=0", "model.layers=4", "train.global_batch_size=8",
                "train.micro_batch_size=1", f"comm.timeout_seconds={deadline}", "parallel.pipeline=2",
                f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={SCHEDULES[schedule]}")
        ranks = [self.start(*command.train_arguments(sets), "--overwrite", RANK=str(rank), WORLD_SIZE="4",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for rank in range(4)]
        metrics = self.run_folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, "steps of training")
        return ranks

    def ends_naming(self, ranks, victim, since, deadline=DEADLINE):
        """What each of the others has said."""
        told = {}
        name = f"rank {VICTIM} (host {socket.gethostname()}, pid {victim})"
        for rank in OTHERS:
            done = ranks[rank].wait(30)
            self.assertEqual(done.status, RENDEZVOUS, str(done))
            self.assertIn(name, done.err, f"rank {rank}")
            told[rank] = done.err
        self.assertLess(time.monotonic() - since, 2 * deadline + 4)  # and what a busy machine takes
        return told

    def test_a_killed_rank_in_every_schedule(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule):
                ranks = self.start_ranks(schedule)
                killed = time.monotonic()
                os.kill(ranks[VICTIM].pid, signal.SIGKILL)
                self.ends_naming(ranks, ranks[VICTIM].pid, killed)

    def waits_of_rank_0(self):
        """What rank 0 has begun and not finished, by sequence."""
        shown = json.loads(self.succeeds(self.troika("inspect", "runs/small", "--json")).out)
        return {one["sequence"]: one["label"] for one in shown["ranks"][0]["operations"] if one["state"] == "running"}

    def stop_within_the_pipeline(self, victim):
        """Stops it where rank 0 then waits for a transfer from it, and for nothing else."""
        for _ in range(100):
            os.kill(victim, signal.SIGSTOP)
            before, now = None, self.waits_of_rank_0()
            while before != now:
                before, now = now, self.waits_of_rank_0()
            if now and all(re.fullmatch(TRANSFER, label) for label in now.values()):
                return now.values()
            os.kill(victim, signal.SIGCONT)
        self.fail("rank 0 never waits for a transfer alone")

    def test_a_hang_names_label_stage_and_microbatch(self):
        deadline = 10  # several looks at the recorders fit into it
        ranks = self.start_ranks("1f1b", deadline)
        labels = self.stop_within_the_pipeline(ranks[VICTIM].pid)
        told = self.ends_naming(ranks, ranks[VICTIM].pid, time.monotonic(), deadline)
        self.assertTrue(any(f"exchange '{label}' on axis pipeline" in told[0] for label in labels), told[0])


if __name__ == "__main__":
    command.main()
