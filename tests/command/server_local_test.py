"""Workers of servers that take steps of their own, and push what these have changed: [sync] local_steps."""

import json

import command
from command import numbers_of, wait_until
from going_on import EXACT
from server_runs import ASYNCHRONOUS, SECONDS, SERVER, ServerTest
from slow import slow

USAGE = 2
KEEPS_ALL = ("sync.outer_lr=1", "sync.outer_momentum=0")


class LocalSteps(ServerTest):
    def test_one_worker_whose_change_is_taken_as_it_is_trains_alone(self):
        """With any optimiser and clipping: warm-up and decay go on from one of its steps to the next."""
        sets = (*EXACT, "optimizer.kind=adamw", "optimizer.lr=0.01", "train.grad_clip=0.05")
        expected = self.model_of("alone", *sets, "train.steps=12", "train.global_batch_size=3", "optimizer.warmup_steps=4", ranks=1)
        local = (*sets, "train.steps=3", "train.global_batch_size=12", "optimizer.warmup_steps=1", *SERVER, "sync.local_steps=4",
                 *KEEPS_ALL)
        for servers in (1, 2):
            found = self.model_of(f"servers-{servers}", *local, f"sync.servers={servers}", ranks=1)
            self.assertLess(self.largest_difference(found, expected), 1e-10)
        mean = [sum(line["loss"] for line in self.lines_of("alone")[first:first + 4]) / 4 for first in (0, 4, 8)]
        for line, loss in zip(self.is_whole("servers-2", 3), mean):
            self.assertAlmostEqual(line["loss"], loss, 10)
            self.assertGreater(line["grad_norm"], 0)

    def test_low_precision(self):
        """The scale of losses has no part in what is pushed."""
        sets = ("train.precision=bf16", "optimizer.kind=adamw", "optimizer.lr=0.01", "train.evaluate_every_steps=0")
        expected = self.model_of("alone", *sets, "train.steps=8", ranks=1)
        for name, kind in (("together", SERVER), ("apart", ASYNCHRONOUS)):
            found = self.model_of(name, *sets, *kind, *KEEPS_ALL, "sync.local_steps=4", "train.steps=2",
                                  "train.global_batch_size=16", ranks=1)
            self.assertLess(self.largest_difference(found, expected), 1e-5)

    def test_one_step_of_sgd_is_all_reduce(self):
        """Its rate is the product of both, its momentum the servers'. A group's rate counts once."""
        constant = ("optimizer.schedule=constant", "train.steps=8",
                    'optimizer.groups=[{match="*norm*", lr_factor=0.5, weight_decay=0}]')
        momentum = ("optimizer.momentum=0.8", "optimizer.nesterov=true")
        expected = self.model_of("all", *EXACT, *constant, *momentum, "optimizer.lr=0.1", "optimizer.weight_decay=0", ranks=2)
        outer = ("sync.local_steps=1", "sync.outer_lr=0.5", "sync.outer_momentum=0.8", "optimizer.weight_decay=0")
        for workers, servers in ((2, 1), (3, 2)):
            found = self.model_of(f"server-{workers}", *EXACT, *constant, "optimizer.lr=0.2", *SERVER, *outer,
                                  f"sync.servers={servers}", ranks=workers)
            self.assertLess(self.largest_difference(found, expected), 1e-10)

    @slow
    def test_a_run_that_is_stopped_goes_on(self):
        """Synchronous, with the servers' momentum, to the bit: SGD without momentum keeps nothing of the workers'."""
        sets = (*EXACT, *SERVER, "train.steps=200", "sync.local_steps=2", "checkpoint.every_steps=7")
        whole = self.model_of("whole", *sets, ranks=2)
        process = self.begin("stopped", *sets, ranks=2)
        self.wait_for_steps(process, "stopped", 20)
        self.stop(process, "stopped")
        done = self.succeeds(self.train("name=stopped", *sets, ranks=2))
        self.assertIn("going on from the checkpoint of step", done.err)
        self.is_whole("stopped", 200)
        self.assertEqual(numbers_of(self.folder_of("stopped") / "model.safetensors"), whole)

    @slow
    def test_a_run_goes_on_with_local_steps(self):
        """The servers' momentum begins with zero."""
        sets = ("optimizer.kind=adamw", "optimizer.lr=0.01", "checkpoint.every_steps=5", "name=run")
        self.succeeds(self.train(*sets, "train.steps=10", ranks=2))
        changed = (*sets, "train.steps=20", *SERVER, "sync.local_steps=2")
        done = self.succeeds(self.troika("train", "recipe.toml", *self.flags(changed), "--ranks", 2, "--resume"))
        self.assertIn("going on from the checkpoint of step 10", done.err)
        lines = self.is_whole("run", 20)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertIn(f"optimizer.outer_momentum", self.kinds_there())
        done = self.troika("train", "recipe.toml", *self.flags((*sets, "train.steps=30")), "--ranks", 2, "--resume")
        self.assertNotEqual(done.status, 0, str(done))
        self.assertRegex(done.err, "optimizer.exp_avg")
        self.assertNotIn("internal", done.err)

    @slow
    def test_momentum_of_gradients_is_none_of_changes(self):
        """One step on servers behind a run with momentum is one behind the same values."""
        sgd = ("optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.05", "train.precision=fp64")
        self.succeeds(self.train("name=run", *sgd, "checkpoint.every_steps=5", "train.steps=10", ranks=1))
        local = (*sgd, *SERVER, "sync.local_steps=2", "optimizer.schedule=constant")
        changed = ("name=run", *local, "checkpoint.every_steps=5", "train.steps=11")
        self.succeeds(self.troika("train", "recipe.toml", *self.flags(changed), "--ranks", 1, "--resume"))
        losses = [line["loss"] for line in self.lines_of("run")]
        # A momentum of gradients would throw it far from where it was.
        self.assertLess(abs(losses[10] - losses[9]), 0.3)
        norm = self.lines_of("run")[10]["grad_norm"]
        self.assertLess(norm, 0.5)

    def kinds_there(self):
        newest = max((self.folder_of("run") / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
        return {".".join(name.split(".")[:2]) for name in json.loads((newest / "manifest.json").read_text())["tensors"]}

    def flags(self, sets):
        return [word for one in sets for word in ("--set", one)]

    @slow
    def test_workers_come_and_go(self):
        """Asynchronous: one is killed and started again, and no step waits or is lost."""
        sets = (*ASYNCHRONOUS, "train.steps=60", "train.global_batch_size=16", "sync.local_steps=4", "sync.lease_seconds=2",
                "optimizer.lr=0.05", "elastic.max_restarts=2", "debug.sample_seconds=0.01", "train.evaluate_every_steps=60")
        process = self.begin("elastic", *sets, ranks=2)
        self.wait_for_steps(process, "elastic", 5)
        wait_until(lambda: self.kill(process, 3), "worker 1 to be killed")
        done = self.succeeds(process.wait(SECONDS))
        lines = self.is_whole("elastic", 60)
        self.assertEqual(sum(line["updates"] for line in lines), 120, str(done))
        self.assertEqual(sum(line.get("lost_samples", 0) for line in lines), 0)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"] - 0.3)

    @slow
    def test_what_is_compressed_trains_on(self):
        all_of_it = ("compress.kind=top_k", "compress.fraction=1")
        sets = (*EXACT, *SERVER, "train.steps=10", "sync.local_steps=2", "optimizer.momentum=0.5")
        expected = self.model_of("plain", *sets, ranks=2)
        self.assertLess(self.largest_difference(self.model_of("all", *sets, *all_of_it, ranks=2), expected), 1e-10)
        few = self.model_of("few", *sets, "compress.kind=int8", ranks=2)
        self.assertLess(self.largest_difference(few, expected), 0.05)

    def test_too_few_samples_are_refused(self):
        done = self.train(*SERVER, "sync.local_steps=3", ranks=2)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("local_steps = 3 do not get a sample each: a data rank of a worker has 2 samples of", done.err)
        self.assertIn("write global_batch_size = 6 or more", done.err)


if __name__ == "__main__":
    command.main()
