"""A run repeated gives the same bits, whatever it computes in."""

import command
from command import CommandTest

# 7 samples on 2 ranks: shares of two sizes.
SETS = ("train.deterministic=true", "train.global_batch_size=7", "model.dropout=0.1", "debug.dump_steps=[3]",
        "optimizer.kind=adamw", "optimizer.lr=0.01", "observe.tensorboard=false")


class SameBits(CommandTest):
    def run_of(self, precision, name):
        self.succeeds(self.train(f"name={name}", f"train.precision={precision}", *SETS, ranks=2))
        run = self.folder / "runs" / name
        figures = [(line["loss"], line["grad_norm"], line.get("held_out_loss")) for line in self.metrics(run)]
        files = [run / "model.safetensors", *sorted((run / "dump").rglob("*.safetensors"))]
        return figures, {path.relative_to(run): path.read_bytes() for path in files}

    def test_a_run_repeated(self):
        seen = set()
        for precision in ("fp64", "fp32", "bf16", "fp16"):
            with self.subTest(precision):
                figures, files = self.run_of(precision, f"{precision}-first")
                again, files_again = self.run_of(precision, f"{precision}-again")
                self.assertEqual(figures, again)
                self.assertEqual(len(files), 4)
                self.assertEqual([path for path in files if files[path] != files_again[path]], [])
                seen.add(tuple(figures))
        self.assertEqual(len(seen), 4, "each precision has numbers of its own")


if __name__ == "__main__":
    command.main()
