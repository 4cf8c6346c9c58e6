"""Layouts that promise the same bits keep them in 16 bits, too; `troika verify` has fp64."""

import command
from command import CommandTest

SETS = ("train.deterministic=true", "train.global_batch_size=6", "train.micro_batch_size=1", "model.layers=4",
        "model.heads=4", "model.dropout=0.1", "model.tied_embeddings=false", "debug.dump_steps=[1, 3]",
        "optimizer.kind=adamw", "optimizer.lr=0.01", "observe.tensorboard=false", "train.evaluate_every_steps=0")
# A layout, and those that must have its bits.
ALIKE = {
    (): [("parallel.pipeline=2",),
         ("parallel.pipeline=2", "parallel.pipeline_schedule=zb-h1", "parallel.activation_checkpoint=full"),
         ("parallel.pipeline=2", "parallel.pipeline_schedule=zb-v", "parallel.activation_checkpoint=selective"),
         ("parallel.pipeline=3", "parallel.pipeline_schedule=zb-h2", "parallel.stage_units=[4, 1, 1]")],
    ("parallel.tensor=2",): [
        ("parallel.tensor=2", "parallel.pipeline=2", "parallel.pipeline_schedule=interleaved-1f1b",
         "parallel.virtual_stages=2")],
    ("parallel.data=2",): [
        ("parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=3", "parallel.pipeline_schedule=zb-h1"),
        ("parallel.data=2", "parallel.zero_stage=2", "parallel.activation_checkpoint=full")],
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

    def test_16_bits(self):
        for precision in ("bf16", "fp16"):
            for layout, others in ALIKE.items():
                files = self.files_of(precision, layout)
                for other in others:
                    with self.subTest(f"{precision}: {' '.join(other)}"):
                        theirs = self.files_of(precision, other)
                        self.assertEqual([name for name in files if files[name] != theirs[name]], [])


if __name__ == "__main__":
    command.main()
