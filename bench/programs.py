"""Networks of Python's in full size, from torch.export's files, against the same networks in eager PyTorch; one rank of one thread.

Gradients are compared before anything is timed. The rows are a step's seconds and the peak of the process's memory.
"""

import json
import pathlib
import statistics

from runs import parameters_in, same_work

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "full_size.py"
STEPS, QUICK_STEPS = 8, 4
GOAL = 1
TEXTS = 'loss = "none"\ntargets = { labels = { classes = 30000 } }\ninputs = { input_ids = { classes = 30000 }, attention_mask = { classes = 2 } }'
IMAGES = "targets = { y = { classes = 1000 } }"
SAMPLES = {"bert-base": (4, TEXTS), "gpt2": (4, TEXTS), "vit-base": (4, IMAGES), "resnet-50": (8, IMAGES)}  # as the peer has them
PRECISIONS = ("fp32", "bf16")

RECIPE = """
name = "program"
[model]
kind = "exported"
path = "{path}"
{keys}
[data]
kind = "random"
held_out_fraction = 0
[train]
global_batch_size = {samples}
micro_batch_size = {samples}
grad_clip = {clip}
evaluate_every_steps = 0
[optimizer]
kind = "adamw"
lr = 1e-4
schedule = "constant"
warmup_steps = 0
[checkpoint]
every_minutes = 0
[observe]
tensorboard = false
"""


class Program:
    def __init__(self, rows, name):
        self.bench, self.options, self.name = rows.bench, rows.options, name
        self.samples, self.keys = SAMPLES[name]
        self.recipe = self.bench.scratch / "program.toml"
        self.folder = self.bench.scratch / "program"
        self.path = self.bench.scratch / f"{name}.pt2"

    def peer(self, *words):
        return self.bench.run([self.options.peer_python, PEER, self.name, *words])[0].splitlines()[-1]

    def train(self, steps, precision, *sets, clip=1.0):
        self.recipe.write_text(RECIPE.format(path=self.path, keys=self.keys, samples=self.samples, clip=clip))
        sets = [f"runs_dir={self.bench.scratch}", f"train.steps={steps}", f"train.precision={precision}", *sets]
        return json.loads(self.bench.run([self.options.troika, "train", self.recipe, "--ranks", 1, "--json", "--overwrite",
                                          *(word for one in sets for word in ("--set", one))])[0])

    def prepare(self):
        self.bench.run([self.options.peer_python, PEER, self.name, "--export", self.path])
        self.train(1, "fp32", "debug.dump_steps=[1]")
        dump = self.folder / "dump" / "step-1"
        same_work(self.name, parameters_in(dump / "gradients.safetensors"), json.loads(self.peer("--check", dump)))

    def ours(self, steps, precision):
        summary = self.train(steps, precision)
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return middle([line["step_seconds"] for line in lines]), summary["ranks"][0]["peak_memory_bytes"]

    def theirs(self, steps, precision):
        found = json.loads(self.peer("--steps", steps, "--precision", precision))
        return middle(found["step_seconds"]), found["peak_memory_bytes"]


def middle(seconds):
    """The median without the first third, in which memory is taken."""
    return statistics.median(seconds[len(seconds) // 3:])


def training(rows):
    """What `rows.row` takes, for each network and precision."""
    steps = QUICK_STEPS if rows.options.quick else STEPS
    for name in SAMPLES:
        program = Program(rows, name)
        program.prepare()
        for precision in PRECISIONS:
            pairs = rows.alternate(f"{name}, {precision}", lambda: program.ours(steps, precision), lambda: program.theirs(steps, precision))
            for ours, theirs in pairs:
                rows.say(f"{name}, {precision}: peak of memory {ours[1] >> 20} MB, eager PyTorch's {theirs[1] >> 20} MB")
            yield (f"{name} of torch.export, {precision}, a step", "troika", "eager PyTorch", 1,
                   [(ours[0], theirs[0]) for ours, theirs in pairs], GOAL)
        program.path.unlink()
