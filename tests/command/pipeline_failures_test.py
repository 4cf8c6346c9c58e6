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
DEADLINE = 6
# Four ranks: pipeline 2 x data 2 (or tensor 2). Rank 2 is the second stage of rank 0, and holds up rank 3 over the
# other axis; rank 1 shares nobody with it but the world.
VICTIM = 2
TRANSFER = r"(send|receive) (activation|gradient) \d+ \(for stage [01]\)"
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}


class PipelineFailures(CommandTest):
    def start_ranks(self, schedule, *more, deadline=DEADLINE):
        """Ranks that no launcher watches: each has to find out by itself."""
        port = reserved_port()
        sets = (ENDLESS, "train.evaluate_every_steps=0", "model.layers=4", "train.global_batch_size=8",
                "train.micro_batch_size=1", f"comm.timeout_seconds={deadline}", "parallel.pipeline=2",
                f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={SCHEDULES[schedule]}", *more)
        ranks = [self.start(*command.train_arguments(sets), "--overwrite", RANK=str(rank), WORLD_SIZE="4",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for rank in range(4)]
        metrics = self.run_folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, "steps of training")
        return ranks

    def ends_naming(self, ranks, since, victim=VICTIM, deadline=DEADLINE):
        """What each of the others has said."""
        told = {}
        name = f"rank {victim} (host {socket.gethostname()}, pid {ranks[victim].pid})"
        for rank in set(range(4)) - {victim}:
            done = ranks[rank].wait(30)
            self.assertEqual(done.status, RENDEZVOUS, str(done))
            self.assertIn(name, done.err, f"rank {rank}")
            told[rank] = done.err
        self.assertLess(time.monotonic() - since, 2 * deadline)
        return told

    def test_a_killed_rank_in_every_schedule(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule):
                self.kill(self.start_ranks(schedule), VICTIM)

    def test_a_killed_rank_in_other_layouts(self):
        for victim, layout in ((0, ["parallel.zero_stage=3"]), (1, ["parallel.tensor=2"]),
                               (3, ["parallel.tensor=2", "parallel.activation_checkpoint=full"])):
            with self.subTest(layout):
                self.kill(self.start_ranks("zb-h1", *layout), victim)

    def kill(self, ranks, victim):
        killed = time.monotonic()
        os.kill(ranks[victim].pid, signal.SIGKILL)
        self.ends_naming(ranks, killed, victim)

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
            # Stopped again at once, it might have got nowhere, and be found where it was each time.
            wait_until(lambda left=now: not left.keys() & self.waits_of_rank_0().keys(), "rank 0 goes on")
        self.fail("rank 0 never waits for a transfer alone")

    def test_a_hang_names_label_stage_and_microbatch(self):
        deadline = 10  # several looks at the recorders fit into it
        ranks = self.start_ranks("1f1b", deadline=deadline)
        labels = self.stop_within_the_pipeline(ranks[VICTIM].pid)
        told = self.ends_naming(ranks, time.monotonic(), deadline=deadline)
        self.assertTrue(any(f"exchange '{label}' on axis pipeline" in told[0] for label in labels), told[0])


if __name__ == "__main__":
    command.main()
