"""What the tests of runs that go on from checkpoints share."""

import hashlib
import json
import os
import shutil
import signal

from command import RECIPE, CommandTest, numbers_of, train_arguments, wait_until

TIMINGS = {"tokens_per_second", "step_seconds", "data_wait_seconds", "memory_bytes", "cached_tensor_bytes",
           "page_faults", "cpu_utilisation", "flops_per_second", "mfu", "outside_seconds"}


def recipe_with_checkpoints(steps):
    """A GPT with dropout and AdamW, a checkpoint every 5 steps, of which 2 stay."""
    text = RECIPE.replace("steps = 3", f"steps = {steps}").replace('kind = "sgd"', 'kind = "adamw"')
    text = text.replace("lr = 0.1", "lr = 0.01").replace("seq_len = 32", "seq_len = 32\ndropout = 0.1")
    return text + "[checkpoint]\nevery_steps = 5\nkeep = 2\n"


# Different syncs have the same numbers in fp64, with SGD, without clipping, and targets of equal weight.
EXACT = ("train.precision=fp64", "data.kind=random", "optimizer.kind=sgd", "train.grad_clip=0", "model.layers=2",
         "train.global_batch_size=8")


def write_manifest(path, content):
    """With the digest that it has to have."""
    content = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}))


class GoingOnTest(CommandTest):
    def model_of(self, name, *sets, ranks=2):
        """The numbers of what a run of this name has trained."""
        self.succeeds(self.train(f"name={name}", *sets, ranks=ranks))
        return numbers_of(self.folder / "runs" / name / "model.safetensors")

    def largest_difference(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        return max(abs(a - b) for name in one for a, b in zip(one[name], other[name]))

    def goes_on_after_a_kill(self, *sets, steps, then):
        """A run of two ranks that is killed behind its second checkpoint ends with the bits of one that was not. Then `then(sets)`
        goes on from it."""
        sets = (*sets, f"train.steps={steps}", "optimizer.kind=adamw", "optimizer.lr=0.01", "checkpoint.every_steps=7",
                "checkpoint.keep=2")
        self.succeeds(self.train("name=whole", *sets, ranks=2))
        process = self.start(*train_arguments(sets), "--ranks", 2)
        self.wait_for_checkpoint(process, 14)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        done = self.succeeds(self.train(*sets, ranks=2))
        self.assertRegex(done.err, rf"going on from the checkpoint of step \d+ of {steps}")
        self.expect_same_as("whole")
        then(sets)
        shutil.rmtree(self.folder / "runs")

    def steps_there(self, run=None):
        folder = (run or self.run_folder) / "checkpoints"
        return sorted(int(path.parent.name[5:]) for path in folder.glob("step-*/manifest.json"))

    def newest(self):
        return (self.steps_there() or [0])[-1]

    def wait_for_checkpoint(self, process, step):
        """Of that step, or a later one."""
        wait_until(lambda: process.popen.poll() is not None or self.newest() >= step, "a checkpoint")
        self.assertIsNone(process.popen.poll(), "it has ended before it could be stopped")

    def figures(self, run=None):
        return [{name: value for name, value in line.items() if name not in TIMINGS} for line in self.metrics(run)]

    def expect_same_as(self, name):
        """The run is the one that was never stopped: models, and every line but for timings."""
        other = self.folder / "runs" / name
        self.assertEqual(self.figures(), self.figures(other))
        models = {path.name for path in other.glob("*.safetensors")}
        self.assertIn("model.safetensors", models)
        self.assertEqual({path.name for path in self.run_folder.glob("*.safetensors")}, models)
        for file in models:
            self.assertEqual((self.run_folder / file).read_bytes(), (other / file).read_bytes(), file)
        mine, its = (json.loads((run / "summary.json").read_text()) for run in (self.run_folder, other))
        for key in ("steps", "samples", "updates", "tokens", "best"):
            self.assertEqual(mine.get(key), its.get(key), key)
