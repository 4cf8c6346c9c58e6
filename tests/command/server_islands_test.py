"""Workers of servers that are several ranks each, in any layout: [sync] island."""

import os
import pathlib
import signal

import command
from command import ENDLESS, numbers_of, train_arguments, wait_until
from going_on import EXACT
from launchers import reserved_port
from server_runs import ASYNCHRONOUS, SECONDS, SERVER, ServerTest
from slow import slow

USAGE = 2
LAYOUTS = {"tensor": ("parallel.tensor=2",), "pipeline": ("parallel.pipeline=2",), "data": (),
           "sharded": ("parallel.zero_stage=3",)}
ISLAND = ("sync.island=2",)
LOCAL = ("sync.local_steps=2", "sync.outer_lr=0.7", "sync.outer_momentum=0.9", "optimizer.kind=adamw", "optimizer.lr=0.01")


class Islands(ServerTest):
    def test_an_island_trains_as_one_rank_does(self):
        """Gradients that it pushes, and what steps of its own change, whatever lies where."""
        for name, sets in (("gradients", ()), ("changes", LOCAL)):
            sets = (*EXACT, *SERVER, "train.steps=4", "train.grad_clip=0.05", *sets)
            expected = self.model_of(name, *sets, ranks=1)
            for layout in ("tensor", "pipeline", "data"):
                with self.subTest(name, layout=layout):
                    found = self.model_of(f"{name}-{layout}", *sets, *ISLAND, *LAYOUTS[layout], ranks=2)
                    self.assertLess(self.largest_difference(found, expected), 1e-10)
                    self.same_metrics(f"{name}-{layout}", name)

    def same_metrics(self, name, other):
        for mine, its in zip(self.is_whole(name, 4), self.is_whole(other, 4)):
            for key in ("loss", "grad_norm", "tokens", "workers"):
                self.assertAlmostEqual(mine[key], its[key], 9, key)

    @slow
    def test_islands_train_as_ranks_do(self):
        """Two of them, with parameters on two servers, and with shards of optimiser and parameters."""
        sets = (*EXACT, *SERVER, "train.steps=4", "sync.servers=2", *LOCAL, 'optimizer.groups=[{match="*norm*", frozen=true}]')
        expected = self.model_of("ranks", *sets, ranks=2)
        for layout in LAYOUTS:
            with self.subTest(layout):
                found = self.model_of(layout, *sets, *ISLAND, *LAYOUTS[layout], ranks=4)
                self.assertLess(self.largest_difference(found, expected), 1e-10)
                self.same_metrics(layout, "ranks")

    @slow
    def test_frozen_parameters_are_the_jobs(self):
        """Also where the run has begun with another's values."""
        frozen = 'optimizer.groups=[{match="*layers.0.*", frozen=true}]'
        self.model_of("first", *EXACT, "train.steps=5", "seed=7", ranks=1)
        sets = (*EXACT, "train.steps=3", frozen, "model.from=runs/first")
        expected = self.model_of("all", *sets, ranks=1)
        for name, island in (("alone", ()), ("island", (*ISLAND, "parallel.tensor=2"))):
            found = self.model_of(name, *sets, *SERVER, *island, ranks=2 if island else 1)
            self.assertLess(self.largest_difference(found, expected), 1e-10)

    def ranks_of_islands(self):
        """{rank: pid} of the ranks that islands of this test have started, by place of the island."""
        found = {}
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = dict(one.split(b"=", 1) for one in (path / "environ").read_bytes().split(b"\0") if b"=" in one)
                here = os.readlink(path / "cwd") == str(self.folder)
            except OSError:
                continue
            if here and b"TROIKA_WORKER_PLACE" in variables:
                found.setdefault(int(variables[b"TROIKA_WORKER_PLACE"]), {})[int(variables[b"RANK"])] = int(path.name)
        return found

    @slow
    def test_an_island_whose_rank_dies_comes_back(self):
        """Be it the one that speaks for all, or another; or the process that has started them. A rank that dies is told at once."""
        sets = (*ASYNCHRONOUS, "train.steps=60", "train.global_batch_size=16", *LOCAL, *ISLAND, "parallel.tensor=2",
                "elastic.max_restarts=2", "debug.sample_seconds=0.02", "train.evaluate_every_steps=60")
        for name, lease in (("leader", 2), ("follower", 60), ("starter", 2)):
            with self.subTest(name):
                process = self.begin(name, *sets, f"sync.lease_seconds={lease}", ranks=4)
                self.wait_for_steps(process, name, 5)
                if name == "starter":
                    wait_until(lambda: self.kill(process, 3), "worker 1 to be killed")
                else:
                    os.kill(self.ranks_of_islands()[1][name == "follower"], signal.SIGKILL)
                done = self.succeeds(process.wait(SECONDS))
                lines = self.is_whole(name, 60)
                self.assertEqual(sum(line["updates"] for line in lines), 120, str(done))
                self.assertIn("it is started again", done.err)
                self.assertLess(lines[-1]["loss"], lines[0]["loss"] - 0.3)
                if name == "follower":
                    self.assertIn("has failed: the job goes on without it", done.err)
                wait_until(lambda: not self.ranks_of_islands(), "no rank to be left")

    @slow
    def test_a_run_that_is_stopped_goes_on(self):
        """Also with a signal to all of its processes; what is pushed is compressed, and all of it is sent."""
        sets = (*EXACT, *SERVER, *ISLAND, "parallel.tensor=2", "train.steps=200", "sync.local_steps=2", "checkpoint.every_steps=7",
                "compress.kind=top_k", "compress.fraction=1", "debug.sample_seconds=0.005")
        whole = self.model_of("whole", *sets, "compress.kind=none", ranks=4)
        process = self.begin("stopped", *sets, ranks=4)
        self.wait_for_steps(process, "stopped", 20)
        for pid in process.ranks().values():
            os.kill(pid, signal.SIGTERM)
        self.stop(process, "stopped")
        wait_until(lambda: not self.ranks_of_islands(), "no rank to be left")
        done = self.succeeds(self.train("name=stopped", *sets, ranks=4))
        self.assertIn("going on from the checkpoint of step", done.err)
        self.is_whole("stopped", 200)
        found = numbers_of(self.folder_of("stopped") / "model.safetensors")
        self.assertLess(self.largest_difference(found, whole), 1e-10)

    @slow
    def test_an_island_joins_and_leaves(self):
        where = f"127.0.0.1:{reserved_port()}"
        sets = (*ASYNCHRONOUS, ENDLESS, "train.global_batch_size=16", *LOCAL, *ISLAND, "parallel.pipeline=2", "model.layers=2",
                f"sync.listen={where}", "debug.sample_seconds=0.01", "train.evaluate_every_steps=0")
        process = self.begin("open", *sets, ranks=2)
        self.wait_for_steps(process, "open", 3)
        guest = self.start(*train_arguments(("name=open", *sets)), "--join", where)
        self.wait_for(process, lambda: any(line["workers"] == 2 for line in self.lines_of("open")), "steps of two workers")
        os.kill(guest.pid, signal.SIGTERM)
        self.succeeds(guest.wait(SECONDS))
        behind = len(self.lines_of("open"))
        self.wait_for(process, lambda: any(line["workers"] == 1 for line in self.lines_of("open")[behind:]), "steps of one")
        done, lines = self.stop(process, "open")
        self.assertNotIn("silent", done.err)  # it has said that it goes
        self.assertFalse(any("lost_samples" in line for line in lines))

    def test_what_is_no_worker_is_refused(self):
        done = self.train(*SERVER, "sync.island=2", "parallel.tensor=2", ranks=3)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("island = 2 does not divide 3 ranks", done.err)
        done = self.train(*SERVER, "parallel.tensor=2", ranks=2)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("write sync.island = 2", done.err)
        done = self.train(*SERVER, "sync.island=4", ranks=2)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("2 ranks are no worker of 4", done.err)


if __name__ == "__main__":
    command.main()
