"""Replicas that go their own ways for a while: [sync] kind = "local" and "gossip"."""

import json
import os
import shutil
import signal

import command
import going_on
from command import RECIPE

USAGE = 2
SECONDS = 120
EXACT = (*going_on.EXACT, "train.steps=12")
LOCAL, GOSSIP = ("sync.kind=local",), ("sync.kind=gossip",)
RESNET = """[model]
kind = "resnet"
image_size = 8
channels = 1
width = 4
classes = 4
[data]
kind = "random"
held_out_fraction = 0.2
[train]
global_batch_size = 8
micro_batch_size = 4
"""


class Loose(going_on.GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def test_an_average_after_each_step_is_all_reduce(self):
        """With any momentum, and whatever lies inside of an island."""
        for momentum in (0, 0.9):
            exact = (*EXACT, f"optimizer.momentum={momentum}")
            expected = self.model_of(f"all-{momentum}", *exact, ranks=1)
            for i, (ranks, sets) in enumerate((
                    (2, ("sync.island=1",)),
                    (4, ("sync.island=2", "parallel.zero_stage=1")),
                    (4, ("sync.island=2", "parallel.zero_stage=3")),
                    (4, ("sync.island=2", "parallel.tensor=2")),
                    (4, ("sync.island=2", "parallel.pipeline=2")))):
                with self.subTest(momentum=momentum, sets=sets):
                    found = self.model_of(f"one-{momentum}-{i}", *exact, *LOCAL, "sync.every_steps=1", *sets, ranks=ranks)
                    self.assertLess(self.largest_difference(found, expected), 1e-10)

    def test_gossip_with_all_others_is_all_reduce(self):
        exact = (*EXACT, "optimizer.momentum=0.9")
        expected = self.model_of("all", *exact, ranks=1)
        for i, (ranks, sets) in enumerate(((3, ("sync.island=1", "train.global_batch_size=9")),
                                           (4, ("sync.island=2", "parallel.zero_stage=2")), (4, ("sync.island=1",)))):
            with self.subTest(sets):
                if "train.global_batch_size=9" in sets:
                    expected_here = self.model_of("all-9", *exact, "train.global_batch_size=9", ranks=1)
                else:
                    expected_here = expected
                found = self.model_of(f"complete-{i}", *exact, *GOSSIP, "sync.topology=complete", "sync.overlap=false",
                                      *sets, ranks=ranks)
                self.assertLess(self.largest_difference(found, expected_here), 1e-10)

    def test_gossip_keeps_the_islands_near_each_other(self):
        """Their distance is told, and is far less than that of islands that never exchange anything."""
        sets = ("train.steps=40", "train.evaluate_every_steps=40", "sync.island=1", "train.global_batch_size=8")
        self.succeeds(self.train("name=apart", *LOCAL, "sync.every_steps=1000", *sets, ranks=4))
        apart = self.metrics(self.folder / "runs/apart")[-1]
        for topology in ("ring", "exponential"):
            for overlap in ("true", "false"):
                name = f"{topology}-{overlap}"
                self.succeeds(self.train(f"name={name}", *GOSSIP, f"sync.topology={topology}", f"sync.overlap={overlap}",
                                         *sets, ranks=4))
                found = self.metrics(self.folder / "runs" / name)[-1]
                self.assertGreater(found["consensus_distance"], 0)
                self.assertLess(found["consensus_distance"], 0.5 * apart["consensus_distance"], name)
                self.assertLess(found["held_out_loss"], apart["held_out_loss"] + 0.02, name)

    def test_replicas_are_averaged_in_a_few_collectives(self):
        """Not tensor by tensor: over a slow link each takes as long as a message is on its way."""
        resnet = RECIPE.split("[model]")[0] + RESNET
        for name, text, sets in (("local", RECIPE, LOCAL), ("gossip", RECIPE, GOSSIP), ("statistics", resnet, LOCAL)):
            with self.subTest(name):
                (self.folder / "recipe.toml").write_text(text)
                self.succeeds(self.train(f"name={name}", *sets, "sync.island=1", "optimizer.kind=adamw", "train.steps=3",
                                         "train.evaluate_every_steps=3", "checkpoint.every_steps=2", ranks=2))
                shown = json.loads(self.succeeds(self.troika("inspect", f"runs/{name}", "--json", "--last", 4096)).out)
                averages = [one for one in shown["ranks"][0]["operations"] if one["label"] == "average"]
                # The model for each of two checkpoints, an evaluation and the end; two kinds of state for checkpoints;
                # the distance; and in a ResNet its statistics each time. Tensor by tensor it was hundreds.
                self.assertGreaterEqual(len(averages), 7)
                self.assertLessEqual(len(averages), 16)

    def test_islands_drift_apart_between_rounds(self):
        exact = (*EXACT, "sync.island=1")
        together = self.model_of("all", *EXACT)
        apart = self.model_of("apart", *exact, *LOCAL, "sync.every_steps=4")
        self.assertGreater(self.largest_difference(together, apart), 1e-6)
        # An outer step of SGD at rate 1 is the average.
        outer = self.model_of("outer", *exact, *LOCAL, "sync.every_steps=4", "sync.outer=nesterov", "sync.outer_lr=1",
                              "sync.outer_momentum=0")
        self.assertLess(self.largest_difference(outer, apart), 1e-12)
        diloco = self.model_of("diloco", *exact, *LOCAL, "sync.every_steps=4", "sync.outer=nesterov")
        self.assertGreater(self.largest_difference(diloco, apart), 1e-6)

    def test_the_first_steps_are_those_of_all_reduce(self):
        exact = (*EXACT, "optimizer.kind=adamw", "train.grad_clip=1", "data.kind=text")
        expected = self.model_of("all", *exact, "train.steps=6", "optimizer.schedule=constant")
        for zero_stage in (0, 2):
            found = self.model_of(f"post-{zero_stage}", *exact, *LOCAL, "train.steps=6", "optimizer.schedule=constant",
                                  "sync.start_after=6", "sync.island=1" if zero_stage == 0 else "sync.island=2",
                                  f"parallel.zero_stage={zero_stage}", ranks=2 if zero_stage == 0 else 4)
            self.assertLess(self.largest_difference(found, expected), 1e-9)
        self.assertEqual([round(loss, 9) for loss in self.losses(self.folder / "runs/post-0")],
                         [round(loss, 9) for loss in self.losses(self.folder / "runs/all")])

    def test_a_run_that_is_killed_goes_on_with_the_same_bits(self):
        """In the middle of a round, and with something on its way."""
        local = (*LOCAL, "sync.every_steps=6", "sync.outer=nesterov", "sync.start_after=3")
        for kind in (local, (*local, "sync.fragments=3"), GOSSIP):

            def on_other_ranks(sets, kind=kind):
                # On another number of islands their mean goes on.
                more = self.succeeds(self.train(*sets, "train.steps=160", ranks=4, flags=("--resume",)))
                self.assertIn("island 4", more.err)
                self.assertLess(abs(self.losses()[-1] - self.losses()[149]), 0.5)
                # And where replicas stay equal, on request.
                self.succeeds(self.train("sync.kind=all_reduce", *sets[len(kind) + 1:], "train.steps=165", ranks=2,
                                         flags=("--resume",)))

            with self.subTest(kind=kind):
                self.goes_on_after_a_kill(*kind, "sync.island=1", steps=150, then=on_other_ranks)

    def test_another_kind_of_sync_goes_on_from_the_mean(self):
        """So that the islands are equal after each exchange; and those that are apart cannot be together again."""
        sets = ("sync.island=1", "checkpoint.every_steps=5", "train.evaluate_every_steps=1", "optimizer.schedule=constant")
        self.succeeds(self.train(*GOSSIP, *sets, "train.steps=11", ranks=2))
        self.assertGreater(self.metrics()[-1]["consensus_distance"], 1e-6)
        self.succeeds(self.train(*LOCAL, "sync.every_steps=2", *sets, "train.steps=20", ranks=2, flags=("--resume",)))
        self.assertEqual([line["step"] for line in self.metrics()][-1], 20)
        last = self.metrics()[-1]
        self.assertEqual(last["consensus_distance"], 0)
        refused = self.train(*LOCAL, "sync.every_steps=2", "sync.start_after=30", *sets, "train.steps=40", ranks=2,
                             flags=("--resume",))
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("the islands of this run went their own ways before step", refused.err)

    def test_a_fragment_on_its_way_is_kept_on_other_islands(self):
        """What it has learned stays in the replicas: with a rate of nearly zero nothing changes behind a checkpoint."""
        sets = (*LOCAL, "sync.island=1", "sync.every_steps=8", "sync.fragments=2", "checkpoint.every_steps=8",
                "train.evaluate_every_steps=1", "optimizer.schedule=constant", "train.global_batch_size=8")
        self.succeeds(self.train(*sets, "train.steps=9", ranks=2))
        shutil.rmtree(self.run_folder / "checkpoints/step-00000009")
        before = next(line["held_out_loss"] for line in self.metrics() if line["step"] == 8)
        self.succeeds(self.train(*sets, "train.steps=12", "optimizer.lr=1e-12", ranks=4, flags=("--resume",)))
        for line in self.metrics():
            if line["step"] > 9:
                self.assertLess(abs(line["held_out_loss"] - before), 1e-4, line)

    def test_what_is_evaluated_and_saved_is_the_mean(self):
        """Between rounds, where islands differ."""
        sets = (*LOCAL, "sync.every_steps=5", "sync.island=1", "train.steps=8", "train.evaluate_every_steps=8",
                "train.precision=fp64")
        self.succeeds(self.train(*sets, ranks=2))
        held_out = self.metrics()[-1]["held_out_loss"]
        found = json.loads(self.succeeds(self.troika("evaluate", "runs/small", "--json")).out)
        self.assertLess(abs(found["loss"] - held_out), 1e-9)

    def test_a_signal_is_heard_when_all_meet(self):
        process = self.start_training(*LOCAL, "sync.every_steps=4", "sync.island=1", steps=3)
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, 75, str(done))
        step = self.metrics()[-1]["step"]
        self.assertTrue(step % 4 == 0 or step % 10 == 0, step)

    def test_what_does_not_fit_is_refused(self):
        for sets, needle in ((("sync.island=2",), "2 ranks are one island of 2, which has none to exchange with"),
                             ((), "2 ranks are one island of 2"),
                             (("sync.island=1", "sync.fragments=60"), "fragments = 60 do not all get a turn in 50 steps"),
                             (("sync.island=1", "train.precision=fp16"), "islands skip steps on their own")):
            self.fails(self.train(*LOCAL, *sets, ranks=2), USAGE, needle)
        self.fails(self.train(*LOCAL, "sync.island=2", ranks=3), USAGE, "island = 2 does not divide 3 ranks")
        self.succeeds(self.train(*LOCAL, ranks=1))


if __name__ == "__main__":
    command.main()
