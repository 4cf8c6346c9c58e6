"""Every sample of an epoch counts once in the updates behind a model, whatever became of the run: by the ranks' own records."""

import json
import os
import signal

import command
from command import CommandTest, wait_until

STEPS, BATCH = 300, 4
ROWS = STEPS * BATCH  # one epoch
SECONDS = 120
RECIPE = f"""
name = "small"
[model]
kind = "mlp"
hidden_dims = [8]
[data]
kind = "table"
files = ["rows.csv"]
held_out_fraction = 0
[data.columns]
"*" = {{ as = "number" }}
label = {{ as = "label" }}
[train]
steps = {STEPS}
global_batch_size = {BATCH}
micro_batch_size = 1
precision = "fp32"
evaluate_every_steps = 0
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 0
[parallel]
zero_stage = 2
[checkpoint]
every_steps = 7
[observe]
tensorboard = false
[debug]
ledger = true
"""


class Ledger(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)
        rows = "".join(f"{i},{i % 7 - 3},{i % 11},{i % 2}\n" for i in range(ROWS))
        (self.folder / "rows.csv").write_text("a,b,c,label\n" + rows)

    def killed(self, rank, step):
        """A run one of whose ranks is killed between two checkpoints, so that steps behind the last are lost."""
        process = self.start(*command.train_arguments(()), "--ranks", 2)
        path = self.run_folder / "metrics.jsonl"

        def has_taken():
            return path.exists() and path.read_text().count("\n") >= step

        wait_until(lambda: process.popen.poll() is not None or has_taken(), f"step {step}")
        self.assertIsNone(process.popen.poll(), "it has ended before it could be killed")
        os.kill(process.ranks()[rank], signal.SIGKILL)
        process.wait(SECONDS)

    def counted(self, rank):
        """{step: samples} of the updates behind the model, and how many steps were taken again."""
        own, again = {}, 0
        for line in (self.run_folder / "ledger" / f"rank-{rank}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            lost = [step for step in own if step >= entry["step"]]
            again += len(lost)
            for step in lost:
                del own[step]
            own[entry["step"]] = entry["samples"]
        return own, again

    def test_over_two_kills(self):
        self.killed(1, 33)
        self.killed(0, 150)
        done = self.succeeds(self.train(ranks=2))
        self.assertIn("going on from the checkpoint of step", done.err)
        samples, taken_again = [], 0
        for rank in (0, 1):
            own, again = self.counted(rank)
            self.assertEqual(sorted(own), list(range(1, STEPS + 1)))
            samples += [sample for step in own.values() for sample in step]
            taken_again += again
        self.assertGreater(taken_again, 0, "no step was lost: nothing is shown")
        self.assertEqual(len(samples), ROWS)
        self.assertEqual(len(set(samples)), ROWS)


if __name__ == "__main__":
    command.main()
