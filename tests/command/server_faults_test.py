"""Workers and servers of [sync] kind = "server" that are stopped and killed."""

import os
import random
import signal

import command
from command import ENDLESS, numbers_of, slow
from going_on import EXACT
from server_runs import ASYNCHRONOUS, KINDS, SECONDS, SERVER, ServerTest

SEEDS = 3
RESTARTS = "elastic.max_restarts=100"


class Stopped(ServerTest):
    def test_a_worker_that_was_stopped_joins_again(self):
        """Behind its lease, with parameters and gradients of long ago."""
        # Each sample has as many targets as the model has positions.
        sets = (ENDLESS, "data.kind=random", "train.global_batch_size=8", "train.evaluate_every_steps=0",
                "sync.lease_seconds=1")
        for name, kind in KINDS:
            with self.subTest(name):
                process = self.begin(name, *sets, *kind, ranks=2)
                self.wait_for_steps(process, name, 5)
                worker = process.ranks()[3]
                os.kill(worker, signal.SIGSTOP)
                self.wait_for(process, lambda: self.lines_of(name)[-1]["workers"] == 1, "steps without it")
                os.kill(worker, signal.SIGCONT)
                behind = len(self.lines_of(name))
                self.wait_for(process, lambda: any(line["workers"] == 2 for line in self.lines_of(name)[behind:]),
                              "steps with it again")
                done, lines = self.stop(process, name)
                self.assertIn("has been silent for 1 s: the job goes on without it", done.err)
                self.assertIn("joining again", done.err)
                if kind == ASYNCHRONOUS:  # each sample once
                    self.assertEqual([line["tokens"] for line in lines], [8 * 32 * line["step"] for line in lines])
                    self.assertEqual({line["updates"] for line in lines}, {2})
                else:  # of one step at most, its share
                    self.assertLessEqual(sum(line.get("lost_samples", 0) for line in lines), 4)


class Killed(ServerTest):
    def run_with_kills(self, name, *sets, ranks, steps, victims, kills, seed):
        """Kills as many processes, each after a drawn number of further steps."""
        drawn = random.Random(seed)
        process = self.begin(name, f"train.steps={steps}", *sets, ranks=ranks)
        after, killed = 5, 0
        while killed < kills:
            self.wait_for_steps(process, name, after)
            if self.kill(process, drawn.choice(victims)):
                killed += 1
                after = len(self.lines_of(name)) + drawn.randrange(20)
        return self.succeeds(process.wait(SECONDS))

    @slow
    def test_servers_cost_nothing_wherever_they_die(self):
        """Synchronous, and saved after each update: a server that dies loses gradients alone, which come again."""
        steps = 300
        sets = (*EXACT, *SERVER, f"train.steps={steps}", "sync.servers=2", "sync.save_every_updates=1", "train.grad_clip=0.05",
                "train.evaluate_every_steps=0", "optimizer.momentum=0.9")
        self.succeeds(self.train("name=whole", *sets, ranks=2))
        whole = numbers_of(self.folder_of("whole") / "model.safetensors")
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                name = f"servers-{seed}"
                done = self.run_with_kills(name, *sets, ranks=2, steps=steps, victims=(1, 2), kills=6, seed=seed)
                self.assertGreaterEqual(done.err.count("is back, with update"), 3)
                self.assertNotIn("has lost", done.err)
                found = numbers_of(self.folder_of(name) / "model.safetensors")
                self.assertLess(self.largest_difference(found, whole), 1e-10)
                for mine, its in zip(self.is_whole(name, steps), self.lines_of("whole")):
                    for key in ("loss", "grad_norm", "tokens"):
                        self.assertAlmostEqual(mine[key], its[key], 10, key)

    @slow
    def test_a_run_is_whole_whatever_dies(self):
        """All but the coordinator. Each sample counts once where updates do not wait for each other."""
        steps = 400
        sets = ("train.global_batch_size=9", "train.evaluate_every_steps=0", "sync.servers=2", "sync.save_every_updates=1",
                "sync.lease_seconds=1", RESTARTS)
        self.succeeds(self.train("name=equal", f"train.steps={steps}", *sets[:2]))
        tokens = self.lines_of("equal")[-1]["tokens"]
        for name, kind in KINDS:
            for seed in range(SEEDS):
                with self.subTest(name, seed=seed):
                    self.run_with_kills(f"{name}-{seed}", *sets, *kind, ranks=3, steps=steps, victims=range(1, 6), kills=6,
                                        seed=seed)
                    lines = self.is_whole(f"{name}-{seed}", steps)
                    if kind == ASYNCHRONOUS:
                        self.assertEqual({line["updates"] for line in lines}, {3})
                        self.assertEqual(lines[-1]["tokens"], tokens)
                    else:
                        self.assertEqual({line["updates"] for line in lines}, {1})


if __name__ == "__main__":
    command.main()
