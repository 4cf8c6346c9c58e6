"""A rank that dies or hangs in the middle of a step, of a pipeline above all: every other rank names it, within two
deadlines."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import time

import command
from command import ENDLESS, CommandTest, alive, slow, state_of, wait_until
from launchers import reserved_port

USAGE, RENDEZVOUS = 2, 4
DEADLINE = 6
PATIENT = 10  # several looks at the recorders fit into it
# Four ranks: pipeline 2 x data 2 (or tensor 2). Rank 2 is the second stage of rank 0, and holds up rank 3 over the
# other axis; rank 1 shares no group with it but the world.
VICTIM = 2
TRANSFER = r"(send|receive) (activation|gradient) \d+ \(for stage [0-3]\)"
# Four stages in a row, over messages: the victim is the third of them, and rank 0 hears of it through rank 1 alone.
ROW = ("comm.engine=gloo", "parallel.pipeline=4")
# Hangs on other axes: the layout, the rank that waits for the victim, in what.
PASS = r", microbatch \d+ \(stage 1\)"
AXES = {
    "tensor": (("parallel.tensor=2",), 3, "on axis tensor", rf"layer [23] (attention|feed-forward) [a-z ]+{PASS}"),
    "zero": (("parallel.zero_stage=3",), 3, "on axis data", rf"values of units \d+ to \d+{PASS}"),
    "data": (("model.tied_embeddings=false",), 3, "on axis data", rf"gradient bucket \d+{PASS}"),
}
# Injected hangs: the layout, what the victim is to stop before, the rank that then waits for it.
WIDE = ("parallel.pipeline=1", "parallel.data=4", "parallel.shard=2")  # sharded with rank 3, replicated with rank 0
LATER = "microbatch [1-3] (stage 1)"
REHEARSALS = {
    "attention": (("parallel.tensor=2",), f"layer [23] attention *, {LATER} on axis tensor", 3),
    "feed-forward": (("parallel.tensor=2",), f"layer [23] feed-forward *, {LATER} on axis tensor", 3),
    "tensor-sums": (("parallel.tensor=2",), "gradient bucket *, tensor axis* on axis tensor", 3),
    "values": (("parallel.zero_stage=3",), "values of units *, microbatch * (stage 1) on axis data", 3),
    "updated-values": (("parallel.zero_stage=1",), "values of units [0-9] to [0-9] on axis data", 3),
    "shard-values": ((*WIDE, "parallel.zero_stage=3"), "values of units *, microbatch * on axis data shard", 3),
    "gradients": (("model.tied_embeddings=false",), "gradient bucket [0-9], microbatch * (stage 1) on axis data", 3),
    "shard-gradients": ((*WIDE, "parallel.zero_stage=2"), "gradient bucket * on axis data shard", 3),
    "replica-gradients": ((*WIDE, "parallel.zero_stage=2"), "gradient bucket * on axis data replica", 0),
    "tied-weight": ((), "gradient bucket *, tied* on axis tied stages", 0),
    "shard-norm": (("parallel.zero_stage=2",), "gradient norm on axis data", 3),
    "tensor-norm": (("parallel.tensor=2",), "gradient norm on axis tensor", 3),
    "pipeline-norm": ((), "gradient norm on axis pipeline", 0),
}
# The schedules, axes and injected hangs of each `make test`; `make test-all` has the others.
ALWAYS = {"zb-v", "row", "tensor", "zero", "attention", "values", "replica-gradients", "tied-weight"}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "eager-1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}


class PipelineFailures(CommandTest):
    def start_ranks(self, schedule, *more, deadline=DEADLINE, name="small", stop_before=None):
        """Ranks that no launcher watches: each has to find out by itself. They train, or the victim has stopped."""
        port = reserved_port()
        fault = {"TROIKA_STOP_AT": f"{VICTIM}:{stop_before}"} if stop_before else {}
        sets = (ENDLESS, f"name={name}", "train.evaluate_every_steps=0", "model.layers=4", "train.global_batch_size=8",
                "train.micro_batch_size=1", f"comm.timeout_seconds={deadline}", "parallel.pipeline=2",
                f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={SCHEDULES[schedule]}", *more)
        ranks = [self.start(*command.train_arguments(sets), "--overwrite", RANK=str(rank), WORLD_SIZE="4",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **fault) for rank in range(4)]
        if stop_before:
            victim = ranks[VICTIM].pid
            wait_until(lambda: state_of(victim) == "T" or not alive(victim), f"a stop before {stop_before}")
            self.assertEqual(state_of(victim), "T", stop_before)
            return ranks
        metrics = self.folder / "runs" / name / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, "steps of training")
        return ranks

    def ends_naming(self, ranks, since, victim=VICTIM, deadline=DEADLINE):
        """What each of the others has said."""
        ended = {rank: ranks[rank].wait() for rank in set(range(4)) - {victim}}
        return self.named(ranks, ended, since, victim, deadline)

    def named(self, ranks, ended, since, victim, deadline):
        """The same of ranks that have ended."""
        name = f"rank {victim} (host {socket.gethostname()}, pid {ranks[victim].pid})"
        for rank, done in ended.items():
            self.assertEqual(done.status, RENDEZVOUS, str(done))
            self.assertIn(name, done.err, f"rank {rank}")
            self.assertLess(ranks[rank].started + done.seconds - since, 2 * deadline, f"rank {rank}")
        return {rank: done.err for rank, done in ended.items()}

    def test_a_killed_rank_in_the_middle_of_a_schedule(self):
        self.check_kills(("zb-v", (), 0))

    @slow
    def test_a_killed_rank_in_the_middle_of_every_other_schedule(self):
        self.check_kills(*((schedule, (), 0) for schedule in SCHEDULES if schedule not in ALWAYS), ("1f1b", ROW, 1))

    def check_kills(self, *cases):
        for schedule, layout, near in cases:
            with self.subTest(schedule, layout=layout):
                ranks = self.start_ranks(schedule, *layout, deadline=PATIENT)
                self.stop_within(ranks[VICTIM].pid, near=near)  # what is stopped is killed all the same
                self.kill(ranks, VICTIM, PATIENT)

    @slow
    def test_a_killed_rank_in_other_layouts(self):
        for victim, layout in ((0, ["parallel.zero_stage=3"]), (1, ["parallel.tensor=2"]),
                               (3, ["parallel.tensor=2", "parallel.activation_checkpoint=full"])):
            with self.subTest(layout):
                self.kill(self.start_ranks("zb-h1", *layout), victim)

    def kill(self, ranks, victim, deadline=DEADLINE):
        killed = time.monotonic()
        os.kill(ranks[victim].pid, signal.SIGKILL)
        self.ends_naming(ranks, killed, victim, deadline)

    def waits_of(self, rank, run):
        """What it has begun and not finished, by sequence."""
        shown = json.loads(self.succeeds(self.troika("inspect", f"runs/{run}", "--json")).out)
        return {one["sequence"]: one["label"] for one in shown["ranks"][rank]["operations"]
                if one["state"] == "running"}

    def stop_within(self, victim, run="small", near=0, what=TRANSFER):
        """Stops it where rank `near` then waits for it in operations with such labels: what may be under way besides,
        the loss of a pipeline, is waited for at the end of a step, and for longer."""
        for _ in range(100):
            os.kill(victim, signal.SIGSTOP)
            before, now = None, self.waits_of(near, run)
            while before != now:
                before, now = now, self.waits_of(near, run)
            labels = [label for label in now.values() if re.fullmatch(what, label)]
            if labels and set(now.values()) <= {*labels, "loss"}:
                return labels
            os.kill(victim, signal.SIGCONT)
            # Stopped again at once, it might have got nowhere, and be found where it was each time.
            wait_until(lambda left=now: not left.keys() & self.waits_of(near, run).keys(), f"rank {near} goes on")
        self.fail(f"rank {near} never waits in {what} alone")

    def test_a_hang_is_told_with_its_label(self):
        self.check_hangs(always=True)

    @slow
    def test_a_hang_is_told_with_its_label_in_every_other_layout(self):
        self.check_hangs(always=False)

    def check_hangs(self, always):
        """With stage and microbatch, too."""
        layouts = {schedule: (schedule, (), 0, "on axis pipeline", TRANSFER) for schedule in SCHEDULES}
        layouts["row"] = ("zb-h1", ROW, 1, "on axis pipeline", TRANSFER)
        layouts.update((name, ("1f1b", *case)) for name, case in AXES.items())
        layouts = {name: case for name, case in layouts.items() if (name in ALWAYS) == always}
        deadline = PATIENT
        others = set(range(4)) - {VICTIM}
        hung = []
        # One begins while those before it wait for their deadlines.
        with concurrent.futures.ThreadPoolExecutor(len(layouts) * len(others)) as pool:
            for name, (schedule, sets, near, axis, what) in layouts.items():
                ranks = self.start_ranks(schedule, *sets, deadline=deadline, name=name)
                labels = self.stop_within(ranks[VICTIM].pid, name, near, what)
                ends = {rank: pool.submit(ranks[rank].wait) for rank in others}
                hung.append((name, ranks, labels, time.monotonic(), ends))
        for name, ranks, labels, since, ends in hung:
            _, _, near, axis, _ = layouts[name]
            with self.subTest(name):
                ended = {rank: end.result() for rank, end in ends.items()}
                told = self.named(ranks, ended, since, VICTIM, deadline)
                self.assertTrue(any(f"'{label}' {axis}" in told[near] for label in labels), (labels, told[near]))

    def test_an_injected_hang_is_told_with_its_label(self):
        self.check_injected(always=True)

    @slow
    def test_every_other_injected_hang_is_told_with_its_label(self):
        self.check_injected(always=False)

    def check_injected(self, always):
        """By the rank that waits for it in that operation; those further away name it as well."""
        others = set(range(4)) - {VICTIM}
        cases = {name: case for name, case in REHEARSALS.items() if (name in ALWAYS) == always}
        hung = []
        with concurrent.futures.ThreadPoolExecutor(len(cases) * len(others)) as pool:
            for name, (sets, stop_before, near) in cases.items():
                ranks = self.start_ranks("1f1b", *sets, deadline=PATIENT, name=name, stop_before=stop_before)
                ends = {rank: pool.submit(ranks[rank].wait) for rank in others}
                hung.append((name, ranks, near, time.monotonic(), ends))
        for name, ranks, near, since, ends in hung:
            with self.subTest(name):
                ended = {rank: end.result() for rank, end in ends.items()}
                told = self.named(ranks, ended, since, VICTIM, PATIENT)[near]
                os.kill(ranks[VICTIM].pid, signal.SIGKILL)
                stopped = re.search(r"stops before ('.*' on axis .*) \(TROIKA_STOP_AT\)", ranks[VICTIM].wait().err)
                self.assertIsNotNone(stopped)
                self.assertIn(stopped[1], told)

    def test_a_fault_that_cannot_be_is_refused(self):
        done = self.train(ranks=2, TROIKA_STOP_AT="2:loss*")
        self.fails(done, USAGE, "TROIKA_STOP_AT=2:loss*: the ranks are 0 to 1")


if __name__ == "__main__":
    command.main()
