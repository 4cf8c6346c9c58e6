"""Layouts that promise the same bits keep them in 32 and in 16 bits, too; `troika verify` has fp64.

What that does not compare is the held-out loss, which is the same on every layout, too.
"""

import json
import math
import shutil

import command
from command import CommandTest, numbers_of, slow

SETS = ("train.deterministic=true", "train.global_batch_size=6", "train.micro_batch_size=1", "model.layers=4",
        "model.heads=4", "model.dropout=0.1", "model.tied_embeddings=false", "debug.dump_steps=[1, 3]",
        "optimizer.kind=adamw", "optimizer.lr=0.01", "observe.tensorboard=false", "train.evaluate_every_steps=0")
# A layout, and those that must have its bits: ZeRO, checkpointing and pipelines change no order of additions, axes of
# data and tensor ranks do. Six samples in microbatches of one: every layout accumulates.
ALIKE = {
    (): [("parallel.pipeline=2",),
         ("parallel.pipeline=2", "parallel.pipeline_schedule=gpipe", "parallel.virtual_stages=2"),
         ("parallel.pipeline=2", "parallel.pipeline_schedule=zb-h1", "parallel.activation_checkpoint=full"),
         ("parallel.pipeline=2", "parallel.pipeline_schedule=zb-v", "parallel.activation_checkpoint=selective"),
         ("parallel.pipeline=3", "parallel.pipeline_schedule=zb-h2", "parallel.stage_units=[4, 1, 1]")],
    ("parallel.tensor=2",): [
        ("parallel.tensor=2", "parallel.activation_checkpoint=full"),
        ("parallel.tensor=2", "parallel.pipeline=2", "parallel.pipeline_schedule=interleaved-1f1b",
         "parallel.virtual_stages=2"),
        ("parallel.tensor=2", "parallel.pipeline=2", "parallel.pipeline_schedule=zb-h1",
         "parallel.activation_checkpoint=selective")],
    ("parallel.data=2",): [
        ("parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=1", "parallel.activation_checkpoint=full"),
        ("parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=3", "parallel.pipeline_schedule=zb-h1"),
        ("parallel.data=2", "parallel.zero_stage=2", "parallel.activation_checkpoint=full")],
    ("parallel.data=4", "parallel.shard=2"): [
        ("parallel.data=4", "parallel.shard=2", "parallel.zero_stage=1"),
        ("parallel.data=4", "parallel.shard=2", "parallel.zero_stage=3", "parallel.activation_checkpoint=full")],
    ("parallel.data=2", "parallel.tensor=2"): [
        ("parallel.data=2", "parallel.tensor=2", "parallel.zero_stage=3", "parallel.activation_checkpoint=selective"),
        ("parallel.data=2", "parallel.tensor=2", "parallel.zero_stage=2", "parallel.pipeline=2",
         "parallel.activation_checkpoint=full")],
}


class LayoutBits(CommandTest):
    def files_of(self, precision, layout):
        sizes = [int(one.rsplit("=", 1)[1]) for one in layout if one.split("=")[0] in
                 ("parallel.data", "parallel.tensor", "parallel.pipeline")]
        ranks = 1
        for size in sizes:
            ranks *= size
        self.succeeds(self.train(*SETS, f"train.precision={precision}", *layout, ranks=ranks, flags=("--overwrite",)))
        files = [self.run_folder / "model.safetensors", *sorted((self.run_folder / "dump").rglob("*.safetensors"))]
        self.assertEqual(len(files), 7)
        return {str(path.relative_to(self.run_folder)): path.read_bytes() for path in files}

    def compare(self, precision, first=0, every=1):
        gradients, references = "dump/step-1/gradients.safetensors", set()
        for layout, others in ALIKE.items():
            files = self.files_of(precision, layout)
            references.add(files[gradients])  # an update may round what differs away
            for other in others[first::every]:
                with self.subTest(f"{precision}: {' '.join(other)}"):
                    theirs = self.files_of(precision, other)
                    self.assertEqual([name for name in files if files[name] != theirs[name]], [])
        references.add(self.files_of(precision, ("model.dropout=0.0",))[gradients])
        self.assertEqual(len(references), len(ALIKE) + 1, "other additions, and no dropout, show in the bits")

    @slow
    def test_fp32(self):
        self.compare("fp32")

    def test_bf16(self):
        self.compare("bf16", every=2)

    @slow
    def test_bf16_on_the_other_layouts(self):
        self.compare("bf16", first=1, every=2)

    @slow
    def test_fp16(self):
        self.compare("fp16")


# Other orders of additions than one rank's in microbatches of one.
ROUNDED = [(1, ("train.micro_batch_size=6",)), (4, ("parallel.tensor=4",)),
           (4, ("parallel.data=2", "parallel.tensor=2", "parallel.zero_stage=3", "train.micro_batch_size=3")),
           (8, ("parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero_stage=1",
                "parallel.activation_checkpoint=full"))]


class Rounding(CommandTest):
    """Where bits differ in 16 bits, a layout is as near the gradients in fp64 as one rank is."""

    def gradients(self, precision, ranks, layout=()):
        sets = (*SETS, "train.steps=1", "debug.dump_steps=[1]", f"train.precision={precision}", *layout)
        self.succeeds(self.train(*sets, ranks=ranks, flags=("--overwrite",)))
        return numbers_of(self.run_folder / "dump" / "step-1" / "gradients.safetensors")

    def distance(self, found, expected):
        """The length of the difference as a share of the length, over the whole model."""
        self.assertEqual({name: len(one) for name, one in found.items()},
                         {name: len(one) for name, one in expected.items()})
        pairs = [pair for name in expected for pair in zip(found[name], expected[name])]
        return math.sqrt(sum((own - right) ** 2 for own, right in pairs) / sum(right ** 2 for _, right in pairs))

    def compare(self, precision, most):
        exact = self.gradients("fp64", 1)
        one_rank = self.distance(self.gradients(precision, 1), exact)
        self.assertLess(0.1 * most, one_rank)  # it is rounding that is compared
        self.assertLess(one_rank, most)
        for ranks, layout in ROUNDED:
            with self.subTest(f"{precision}: {' '.join(layout)}", one_rank=one_rank):
                self.assertLess(self.distance(self.gradients(precision, ranks, layout), exact), 1.25 * one_rank)

    @slow
    def test_bf16(self):
        self.compare("bf16", 2**-7)

    @slow
    def test_fp16(self):
        self.compare("fp16", 2**-10)


# In fp64 and with SGD, as `troika verify`; 5 samples a step, which no layout shares out evenly.
HELD_OUT = ("train.precision=fp64", "train.deterministic=true", "train.steps=2", "train.global_batch_size=5",
            "train.evaluate_every_steps=2", "model.layers=4", "model.dropout=0.1", "data.pack=pad",
            "observe.tensorboard=false")
# The bound between layouts, as a share of the loss: 1e-11 with a tensor axis, else 1e-12.
PIPELINES = [(2, 1e-12, ("parallel.pipeline=2",)),
             (2, 1e-12, ("parallel.pipeline=2", "parallel.pipeline_schedule=zb-v")),
             (4, 1e-11, ("parallel.pipeline=2", "parallel.tensor=2"))]
DATA_AND_PIPELINE = [(4, 1e-12, ("parallel.data=2", "parallel.pipeline=2")),
                     (4, 1e-12, ("parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=3",
                                 "train.micro_batch_size=1"))]


class HeldOutLoss(CommandTest):
    def setUp(self):
        super().setUp()
        shutil.rmtree(self.folder / "text")
        (self.folder / "text").mkdir()
        for i in range(24):  # a sample each, with different numbers of targets
            (self.folder / "text" / f"short-{i:02}.txt").write_text(f"document {i}, " + "x" * (i % 17))

    def figures_of(self, held_out, fraction, ranks, *sets):
        done = self.succeeds(self.train(*HELD_OUT, f"data.held_out_fraction={fraction}", *sets, ranks=ranks,
                                        flags=("--overwrite",)))
        self.assertIn(f" {held_out} documents held out", done.err)
        last = self.metrics()[-1]
        self.assertEqual(last["step"], 2)
        return {name: last[name] for name in ("loss", "held_out_loss", "held_out_bits_per_byte")}

    def agrees(self, held_out, fraction, layouts):
        expected = self.figures_of(held_out, fraction, 1)
        for ranks, bound, layout in layouts:
            with self.subTest(" ".join(layout)):
                found = self.figures_of(held_out, fraction, ranks, *layout)
                for name, figure in expected.items():
                    self.assertAlmostEqual(found[name], figure, delta=bound * figure, msg=name)

    def test_shares_of_two_sizes(self):
        self.agrees(3, 0.12, PIPELINES + DATA_AND_PIPELINE)

    def test_a_data_rank_without_a_sample(self):
        self.agrees(1, 0.02, DATA_AND_PIPELINE)


if __name__ == "__main__":
    command.main()
