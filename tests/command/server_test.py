"""Parameters on servers: [sync] kind = "server"."""

import collections
import os
import pathlib
import re
import signal
import subprocess

import command
from command import RECIPE, numbers_of, wait_until
from going_on import GoingOnTest
from launchers import reserved_port

HERE = pathlib.Path(__file__).resolve().parent
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
USAGE = 2
SECONDS = 120
# The identities hold in fp64, with SGD, and targets of equal weight.
EXACT = ("train.precision=fp64", "data.kind=random", "optimizer.kind=sgd", "optimizer.momentum=0.9", "train.steps=12",
         "model.layers=2", "train.global_batch_size=12")
SERVER = ("sync.kind=server",)
ASYNCHRONOUS = (*SERVER, 'sync.staleness="any"')


class Servers(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def model_of(self, name, *sets, ranks=2):
        done = self.succeeds(self.train(f"name={name}", *sets, ranks=ranks))
        self.assertNotIn("internal", done.err)
        return numbers_of(self.folder / "runs" / name / "model.safetensors")

    def largest_difference(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        return max(abs(a - b) for name in one for a, b in zip(one[name], other[name]))

    def steps_of(self, run):
        try:
            return len((run / "metrics.jsonl").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def test_synchronous_updates_are_all_reduce(self):
        """With clipping, and with any number of workers and servers."""
        for clip in (0, 0.05):
            sets = (*EXACT, f"train.grad_clip={clip}")
            expected = self.model_of(f"all-{clip}", *sets, ranks=1)
            for workers, servers in ((1, 1), (2, 1), (3, 2)):
                with self.subTest(clip=clip, workers=workers, servers=servers):
                    name = f"server-{clip}-{workers}-{servers}"
                    found = self.model_of(name, *sets, *SERVER, f"sync.servers={servers}", ranks=workers)
                    self.assertLess(self.largest_difference(found, expected), 1e-10)
                    for mine, its in zip(self.metrics(self.folder / "runs" / name),
                                         self.metrics(self.folder / "runs" / f"all-{clip}")):
                        for key in ("step", "loss", "grad_norm", "learning_rate", "tokens"):
                            self.assertAlmostEqual(mine[key], its[key], 10, key)

    def test_pushes_are_compressed(self):
        """All of top_k is no compression; fewer bits train to nearly the same loss."""
        clip = "train.grad_clip=0.05"
        expected = self.model_of("whole", *EXACT, clip, ranks=1)
        all_of_it = ("compress.kind=top_k", "compress.fraction=1")
        found = self.model_of("all-of-it", *EXACT, clip, *SERVER, "sync.servers=2", *all_of_it, ranks=3)
        self.assertLess(self.largest_difference(found, expected), 1e-10)
        sets = ("train.steps=40", "train.evaluate_every_steps=20", "train.global_batch_size=8", "optimizer.lr=0.05")
        for name, kind in (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS)):
            losses = {}
            for compress in ("none", "int8", "top_k"):
                run = f"{name}-{compress}"
                fraction = ("compress.fraction=0.2",) if compress == "top_k" else ()
                self.succeeds(self.train(f"name={run}", *sets, *kind, f"compress.kind={compress}", *fraction, ranks=2))
                lines = self.metrics(self.folder / "runs" / run)
                self.assertEqual([line["step"] for line in lines], list(range(1, 41)))
                self.assertGreater(lines[-1]["grad_norm"], 0)
                losses[compress] = lines[-1]["held_out_loss"]
            with self.subTest(name, losses=losses):
                self.assertLess(losses["int8"], losses["none"] + 0.05)
                self.assertLess(losses["top_k"], losses["none"] + 0.3)

    def test_asynchronous_updates_are_told_with_their_staleness(self):
        sets = ("train.steps=40", "train.evaluate_every_steps=20", "train.global_batch_size=8", "optimizer.lr=0.05")
        self.succeeds(self.train("name=equal", *sets, ranks=1))
        expected = self.metrics(self.folder / "runs/equal")[-1]["held_out_loss"]
        for name, kind in (("any", ASYNCHRONOUS), ("two", (*SERVER, "sync.staleness=2")),
                           ("divided", (*ASYNCHRONOUS, "sync.correction=inverse", "sync.servers=2"))):
            with self.subTest(name):
                done = self.succeeds(self.train(f"name={name}", *sets, *kind, ranks=3))
                lines = self.metrics(self.folder / "runs" / name)
                self.assertEqual([line["step"] for line in lines], list(range(1, 41)))
                # An update for each worker's share of a step.
                self.assertEqual({line["updates"] for line in lines}, {3})
                self.assertGreater(max(line["staleness_max"] for line in lines), 0)
                self.check_counts(self.folder / "runs" / name, done.err)
                self.assertLess(lines[-1]["held_out_loss"], expected + 0.3)

    def check_counts(self, run, log):
        """Metrics, the log and TensorBoard have the same numbers of updates by their staleness."""
        every = collections.Counter()
        for line in self.metrics(run):
            counts = {int(staleness): count for staleness, count in line["staleness"].items()}
            self.assertEqual(sum(counts.values()), line["updates"])
            self.assertEqual(max(counts), line["staleness_max"])
            self.assertAlmostEqual(sum(one * count for one, count in counts.items()) / line["updates"], line["staleness_mean"], 12)
            every.update(counts)
        total = sum(every.values())
        mean = sum(one * count for one, count in every.items()) / total
        told = re.search(rf"staleness of {total} updates: (.*), mean ([0-9.]+), largest {max(every)}\n", log)
        self.assertTrue(told, log)
        self.assertAlmostEqual(float(told[2]), mean, delta=0.051)
        parts = re.findall(r"(\d+): (\d+) %", told[1])
        self.assertTrue(parts)
        for staleness, percent in parts:
            self.assertAlmostEqual(int(percent), 100 * every[int(staleness)] / total, delta=0.51)
        if not TEST_PYTHON:
            self.skipTest("TROIKA_TEST_PYTHON is not set: nobody reads the TensorBoard files back")
        read = subprocess.run([TEST_PYTHON, HERE / "tensorboard_readback.py", run, run / "metrics.jsonl", "--metrics"],
                              capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(read.returncode, 0, read.stdout + read.stderr)

    def test_a_run_that_is_stopped_goes_on(self):
        for name, kind in (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS)):
            with self.subTest(name):
                sets = (*EXACT, *kind, f"name={name}", "train.steps=400", "optimizer.kind=adamw", "checkpoint.every_steps=7",
                        "train.grad_clip=1")
                whole = self.model_of(f"{name}-whole", *sets, f"name={name}-whole", ranks=2)
                process = self.start(*command.train_arguments(sets), "--ranks", 2)
                run = self.folder / "runs" / name
                wait_until(lambda: process.popen.poll() is not None or (self.steps_there(run) or [0])[-1] >= 14, "a checkpoint")
                os.kill(process.pid, signal.SIGTERM)
                self.assertEqual(process.wait(SECONDS).status, 75)
                done = self.succeeds(self.train(*sets, ranks=2))
                begun = int(re.search(r"going on from the checkpoint of step (\d+) of 400", done.err)[1])
                lines = self.metrics(run)
                self.assertEqual([line["step"] for line in lines], list(range(1, 401)))
                if kind == SERVER:
                    found = numbers_of(run / "model.safetensors")
                    self.assertLess(self.largest_difference(found, whole), 1e-10)
                else:
                    self.assertEqual(sum(line["updates"] for line in lines), 800)
                self.assertEqual([sum(line["staleness"].values()) for line in lines], [line["updates"] for line in lines])
                updates = sum(line["updates"] for line in lines[begun:])
                self.assertIn(f"staleness of {int(updates)} updates since step {begun}: ", done.err)

    def test_a_host_for_each_process(self):
        """Some have no worker, and there are more of them than workers."""
        where = f"127.0.0.1:{reserved_port()}"
        flags = ("--nodes", 4, "--ranks-per-node", 1, "--rendezvous", where)
        jobs = [self.start(*command.train_arguments((*SERVER, "train.steps=3")), *flags, "--node-rank", node) for node in range(4)]
        for job in jobs:
            self.succeeds(job.wait(SECONDS))
        self.assertEqual([line["workers"] for line in self.metrics()], [2] * 3)

    def test_a_worker_that_is_killed_costs_no_step(self):
        sets = ("train.steps=300", "train.global_batch_size=8", "sync.lease_seconds=2")
        self.succeeds(self.train("name=equal", *sets[:2]))
        tokens = self.metrics(self.folder / "runs/equal")[-1]["tokens"]
        for name, kind in (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS)):
            for restarts in (0, 1):
                with self.subTest(name, restarts=restarts):
                    run = self.folder / "runs" / f"{name}-{restarts}"
                    process = self.start(*command.train_arguments(
                        (*sets, *kind, f"name={name}-{restarts}", f"elastic.max_restarts={restarts}")), "--ranks", 3)
                    wait_until(lambda: process.popen.poll() is not None or self.steps_of(run) >= 5, "steps")
                    os.kill(process.ranks()[3], signal.SIGKILL)
                    done = self.succeeds(process.wait(SECONDS))
                    self.assertIn("it is started again" if restarts else "the job goes on without it", done.err)
                    lines = self.metrics(run)
                    self.assertEqual([line["step"] for line in lines], list(range(1, 301)))
                    if name == "asynchronous":
                        self.assertEqual(lines[-1]["tokens"], tokens)

    def test_a_server_that_is_killed_comes_back(self):
        sets = ("train.steps=300", "train.global_batch_size=8", "sync.servers=2", "sync.save_every_updates=5")
        for name, kind in (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS)):
            with self.subTest(name):
                run = self.folder / "runs" / name
                process = self.start(*command.train_arguments((*sets, *kind, f"name={name}")), "--ranks", 2)
                wait_until(lambda: process.popen.poll() is not None or self.steps_of(run) >= 20, "steps")
                os.kill(process.ranks()[2], signal.SIGKILL)
                done = self.succeeds(process.wait(SECONDS))
                self.assertRegex(done.err, r"server 1 is back, with update \d+ of its shard")
                self.assertEqual([line["step"] for line in self.metrics(run)], list(range(1, 301)))

    def test_what_does_not_go_together_is_refused(self):
        for sets, reason in (
                (("parallel.tensor=2",), "tensor"),
                (("compress.kind=power_sgd",), "servers keep parts of parameters, which are no matrices"),
                (("compress.kind=int8", "compress.only=between_hosts"), "wherever its servers are"),
                (("compress.kind=top_k", "optimizer.kind=lamb"), "little or nothing is sent in a step"),
                (("train.precision=fp16",), "fp16"),
                (("optimizer.kind=lamb", "sync.servers=2"), "norms of whole parameters"),
                (("debug.dump_steps=[1]",), "debug.dump_steps"),
                (("sync.correction=inverse",), "no update is stale")):
            with self.subTest(sets):
                refused = self.train(*SERVER, *sets, ranks=2)
                self.assertEqual(refused.status, USAGE, str(refused))
                self.assertIn(reason, refused.err)


if __name__ == "__main__":
    command.main()
