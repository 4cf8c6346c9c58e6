"""What goes over the wire: [compress], on gradients and on the changes of islands."""

import command
import going_on
from command import RECIPE

USAGE = 2
EXACT = (*going_on.EXACT, "train.steps=8")
KINDS = {
    "bf16": (),
    "fp16": (),
    "int8": ("compress.block=64",),
    "qsgd": ("compress.levels=127",),
    "top_k": ("compress.fraction=0.1",),
    "random_k": ("compress.fraction=0.5",),
    "power_sgd": ("compress.rank=2",),
}
LOCAL = ("sync.kind=local", "sync.island=1")


def compressed(kind):
    return (f"compress.kind={kind}", *KINDS[kind])


class Compress(going_on.GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def test_all_of_the_values_are_no_compression(self):
        whole = ("compress.kind=top_k", "compress.fraction=1")
        expected = self.model_of("none", *EXACT)
        found = self.model_of("all", *EXACT, *whole)
        self.assertLess(self.largest_difference(found, expected), 1e-10)
        self.assertGreater(self.largest_difference(self.model_of("some", *EXACT, *compressed("top_k")), expected), 1e-6)
        # Islands that exchange all of their changes after every step.
        for name, ranks, sets in (("one", 2, ("sync.island=1",)), ("two", 4, ("sync.island=2",)),
                                  ("sharded", 4, ("sync.island=2", "parallel.zero_stage=2"))):
            found = self.model_of(name, *EXACT, "sync.kind=local", "sync.every_steps=1", *sets, *whole, ranks=ranks)
            self.assertLess(self.largest_difference(found, expected), 1e-10, sets)

    def test_each_kind_trains_nearly_as_well(self):
        sets = ("train.steps=60", "train.evaluate_every_steps=60", "optimizer.kind=adamw", "optimizer.lr=0.01")
        self.succeeds(self.train("name=none", *sets, ranks=2))
        expected = self.metrics(self.folder / "runs/none")
        for kind in KINDS:
            with self.subTest(kind):
                self.succeeds(self.train(f"name={kind}", *sets, *compressed(kind), ranks=2))
                found = self.metrics(self.folder / "runs" / kind)
                self.assertLess(abs(found[-1]["held_out_loss"] - expected[-1]["held_out_loss"]), 0.25)
                self.assertNotEqual(found[-1]["loss"], expected[-1]["loss"])

    def test_islands_exchange_changes_in_8_bits(self):
        sets = (*LOCAL, "sync.every_steps=5", "train.steps=40", "train.evaluate_every_steps=40", "optimizer.kind=adamw",
                "optimizer.lr=0.01")
        self.succeeds(self.train("name=none", *sets, ranks=2))
        self.succeeds(self.train("name=int8", *sets, *compressed("int8"), ranks=2))
        expected, found = (self.metrics(self.folder / "runs" / name)[-1] for name in ("none", "int8"))
        self.assertLess(abs(found["held_out_loss"] - expected["held_out_loss"]), 0.1)
        self.assertNotEqual(found["held_out_loss"], expected["held_out_loss"])

    def test_a_run_that_is_killed_goes_on_with_the_same_bits(self):
        fragments = (*LOCAL, "sync.every_steps=6", "sync.fragments=3", "sync.outer=nesterov")

        def on_more_ranks(sets):
            """What was kept back is dealt out anew."""
            self.succeeds(self.train(*sets, "train.steps=126", ranks=4, flags=("--resume",)))
            self.assertLess(self.losses()[-1], 0.5 * (self.losses()[0] + self.losses()[119]))

        for sets in (compressed("int8"), compressed("top_k"), compressed("power_sgd"), compressed("qsgd"),
                     (*fragments, *compressed("top_k")), (*fragments, *compressed("power_sgd"))):
            with self.subTest(sets):
                self.goes_on_after_a_kill(*sets, steps=120, then=on_more_ranks)

    def test_layer_wise_rules_take_what_comes_out(self):
        """LARS and LAMB go by the norms of whole tensors, as all others see them."""
        for rule in ("lars", "lamb"):
            sets = (*EXACT, f"optimizer.kind={rule}", "optimizer.lr=0.1")
            expected = self.model_of(f"{rule}-none", *sets)
            for kind, keys in (("top_k", ("compress.fraction=1",)), ("power_sgd", ("compress.rank=10000",))):
                found = self.model_of(f"{rule}-{kind}", *sets, f"compress.kind={kind}", *keys)
                self.assertLess(self.largest_difference(found, expected), 1e-10, (rule, kind))
            found = self.model_of(f"{rule}-int8", *sets, *compressed("int8"))
            self.assertGreater(self.largest_difference(found, expected), 1e-9)
            last, other = (self.losses(self.folder / "runs" / f"{rule}-{kind}")[-1] for kind in ("int8", "none"))
            self.assertLess(abs(last - other), 0.05)

    def test_one_host_has_nothing_to_compress_between_hosts(self):
        expected = self.model_of("none", *EXACT)
        for kind in ("bf16", "power_sgd"):
            found = self.model_of(kind, *EXACT, *compressed(kind), "compress.only=between_hosts")
            self.assertEqual(found, expected, kind)

    def test_one_rank_has_nothing_to_compress(self):
        expected = self.model_of("none", *EXACT, ranks=1)
        for kind in ("int8", "power_sgd"):
            self.assertEqual(self.model_of(kind, *EXACT, *compressed(kind), ranks=1), expected)

    def test_what_does_not_go_together_is_refused(self):
        self.fails(self.train("compress.kind=top_k", "compress.fraction=0"), USAGE, "fraction")
        for sets, needle in ((("parallel.zero_stage=1",), "write zero_stage = 0"),
                             (("parallel.shard=2",), "write shard = 0"),
                             (("train.precision=fp16",), 'write precision = "bf16"'),
                             (("parallel.tensor=2",), "copies of a parameter on tensor ranks would come apart"),
                             (("parallel.pipeline=2", "model.layers=2"), "the first and the last stage share"),
                             (("sync.kind=gossip", "sync.island=1"), "gossip sends parameters")):
            with self.subTest(sets):
                self.fails(self.train(*compressed("int8"), *sets, ranks=2), USAGE, 'kind = "int8" with ', needle)
        for rule in ("lars", "lamb"):
            for kind in ("top_k", "random_k"):
                self.fails(self.train(*compressed(kind), f"optimizer.kind={rule}", ranks=2), USAGE,
                           f"{rule} scales the update of a tensor by its norm")
        # Values alone go together with any copies.
        self.succeeds(self.train(*compressed("bf16"), "parallel.tensor=2", "train.steps=2", ranks=4))


if __name__ == "__main__":
    command.main()
