#!/usr/bin/env python3
"""Trains small recipes with two builds of troika, and says whether every number is the same, bit for bit.

    scripts/compare_builds.py OLD/build/troika build/troika [--quick] [--only WORD]

For a change that must not change a number: build the commit before it in a second work tree, and compare. What is
compared, of each recipe: the dumps of all steps (parameters, gradients, batches), model.safetensors, and each number of
metrics.jsonl that the old build writes, but for times, rates and memory. Token shards are compared byte by byte.
Ends with 1 where anything differs, and keeps the runs then.

Modules of a program's own: examples/own-module, own-zero and own-pipeline print a digest of the parameters that they end
with. Install each build, build its examples against it, put each build's programs into one folder, and compare with

    scripts/compare_builds.py OLD/build/troika build/troika --old-examples DIR --new-examples DIR
"""
import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

DEADLINE_SECONDS = 300  # of one run
STEPS = 3
TRAIN = f"""
[train]
steps = {STEPS}
global_batch_size = 8
micro_batch_size = 2
precision = "fp32"
evaluate_every_steps = 0
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 1
[debug]
dump_steps = [{", ".join(map(str, range(1, STEPS + 1)))}]
"""
GPT = """name = "run"
[model]
kind = "gpt"
layers = 4
dim = 16
heads = 2
ffn_dim = 24
vocab_size = 300
seq_len = 16
[data]
"""
RECIPES = {
    "gpt": GPT + 'kind = "random"\n' + TRAIN,
    "text": GPT + 'kind = "text"\npaths = ["../../text/*.txt"]\nheld_out_fraction = 0.2\n'
            + TRAIN.replace("every_steps = 0", "every_steps = 2"),
    "net": 'name = "run"\n[model]\nkind = "resnet"\nclasses = 5\nblocks = [1, 1]\nwidth = 4\nimage_size = 8\n'
           '[data]\nkind = "random"\n' + TRAIN,
    "mlp": 'name = "run"\n[model]\nkind = "mlp"\ninput_dim = 7\nhidden_dims = [12, 10]\noutput_dim = 5\n'
           '[data]\nkind = "random"\n' + TRAIN,
}
UNTIED = "model.tied_embeddings=false"
GPT2 = "model.norm=layernorm model.position=learned model.activation=gelu model.bias=true model.dropout=0.1"
PIPELINE = "parallel.pipeline=2 parallel.pipeline_schedule="
# Recipe, ranks, overrides; --quick takes those with a star.
CASES = """
gpt  1 *
gpt  1   train.precision=fp64
gpt  1 * train.precision=bf16
gpt  1   train.precision=fp16
gpt  1 * {GPT2}
gpt  1   model.activation=gelu_tanh model.position=learned model.norm_eps=1e-3 {UNTIED}
gpt  1   model.kv_heads=1 model.head_dim=6 model.bias=true model.rope_theta=100
gpt  1   model.norm=layernorm train.precision=bf16 {UNTIED} seed=5
gpt  1   parallel.activation_checkpoint=selective model.dropout=0.2
gpt  1 * parallel.activation_checkpoint=full model.dropout=0.2 train.precision=bf16
gpt  1   train.global_batch_size=7 train.micro_batch_size=3
gpt  1   train.grad_clip=0.05 train.micro_batch_size=8
gpt  1 t train.micro_batch_size=8
gpt  1 * optimizer.kind=sgd optimizer.momentum=0.9 optimizer.nesterov=true
gpt  1   optimizer.kind=sgd optimizer.schedule=linear optimizer.lr_base_batch_size=4 optimizer.weight_decay=0
gpt  1 * optimizer.kind=lamb optimizer.schedule=wsd
gpt  1 * optimizer.kind=lars optimizer.schedule=constant
gpt  1   optimizer.kind=adamw optimizer.betas=[0.8,0.9] optimizer.eps=1e-4 train.precision=fp64
mlp  1 *
mlp  1 * model.loss=mean_square model.activation=gelu
mlp  1   model.loss=mean_square model.activation=tanh train.precision=fp64 optimizer.kind=lars
mlp  1   model.hidden_dims=[] train.precision=bf16 train.micro_batch_size=3
mlp  1   model.loss=binary_cross_entropy train.evaluate_every_steps=2 train.metrics=["accuracy","f1","auc"]
mlp  1   loss.label_smoothing=0.1 train.evaluate_every_steps=2 train.metrics=["accuracy","top_2","f1","perplexity"]
mlp  1   model.loss=mean_square train.evaluate_every_steps=2 train.metrics=["rmse"] optimizer.kind=lion
net  1 *
net  1   train.precision=fp64 optimizer.kind=sgd model.block=bottleneck
text 1 *
text 1 * data.pack=isolated
text 1   data.pack=pad train.precision=bf16
text 1   data.paths=["../../text/1*.txt","../../text/2*.txt"] data.weights=[1,3]
text 1 p data.kind=tokens data.paths=["../tokens/*.tokens"] data.tokenizer=../tokens/tokenizer.model data.pack=isolated
gpt  2 *
gpt  2   parallel.zero_stage=1
gpt  2   parallel.zero_stage=2
gpt  2 * parallel.zero_stage=3
gpt  2   {GPT2} train.precision=bf16
gpt  2   {GPT2} train.precision=bf16 parallel.zero_stage=1
gpt  2 * {GPT2} train.precision=bf16 parallel.zero_stage=2
gpt  2   {GPT2} train.precision=bf16 parallel.zero_stage=3 parallel.activation_checkpoint=full
gpt  2   train.precision=fp16 parallel.zero_stage=2 train.grad_clip=0.05
gpt  2   train.precision=fp64 train.global_batch_size=5 train.deterministic=true
gpt  2   optimizer.kind=lamb parallel.zero_stage=3
gpt  2 * optimizer.kind=lars parallel.zero_stage=1
gpt  2   optimizer.kind=sgd optimizer.momentum=0.9 parallel.zero_stage=2
gpt  2   comm.engine=gloo
gpt  2   comm.engine=gloo parallel.zero_stage=3
mlp  2   parallel.zero_stage=2 optimizer.kind=lamb
mlp  2   model.loss=mean_square train.global_batch_size=7
net  2   parallel.zero_stage=2
net  2 * parallel.zero_stage=3 model.norm=sync_batch
net  2   {PIPELINE}1f1b parallel.activation_checkpoint=full
text 2   data.pack=isolated parallel.zero_stage=3
text 2   data.pack=pad train.global_batch_size=7
gpt  2 * parallel.tensor=2
gpt  2   parallel.tensor=2 train.precision=fp64 {UNTIED}
gpt  2   parallel.tensor=2 train.precision=bf16 {GPT2}
gpt  2   parallel.tensor=2 parallel.activation_checkpoint=selective model.bias=true optimizer.kind=lamb
text 2   parallel.tensor=2 data.pack=pad
gpt  2   {PIPELINE}gpipe train.precision=fp64
gpt  2 * {PIPELINE}1f1b
gpt  2   {PIPELINE}1f1b {GPT2} {UNTIED} train.precision=bf16 parallel.activation_checkpoint=full
gpt  2   {PIPELINE}1f1b parallel.stage_units=[2,4] optimizer.kind=lars
gpt  2   {PIPELINE}interleaved-1f1b parallel.virtual_stages=2
gpt  2   {PIPELINE}zb-h1 {UNTIED}
gpt  2   {PIPELINE}zb-h2 {GPT2}
gpt  2 * {PIPELINE}zb-v train.precision=bf16
mlp  2   {PIPELINE}1f1b model.loss=mean_square
text 2   {PIPELINE}zb-v data.pack=isolated
gpt  4   {PIPELINE}1f1b parallel.zero_stage=2
gpt  4   {PIPELINE}zb-v parallel.zero_stage=3 train.precision=bf16
gpt  4   parallel.tensor=2 parallel.zero_stage=1 {GPT2}
gpt  4   parallel.tensor=2 {PIPELINE}interleaved-1f1b parallel.virtual_stages=2
gpt  4   parallel.zero_stage=3 parallel.shard=2
"""
EXAMPLES = [("own_module", 1), ("own_module", 2), ("own_zero", 2, "1"), ("own_zero", 2, "2"), ("own_pipeline", 2, "2", "zb-v"),
            ("own_pipeline", 4, "2", "1f1b", "1"), ("own_pipeline", 4, "2", "interleaved-1f1b", "3")]
NOT_COMPARED = re.compile(r"_seconds$|_per_second$|_bytes$|^page_faults$|^cpu_utilisation$|^mfu$")


class Difference(Exception):
    """The first number that differs, by name."""


@dataclasses.dataclass
class Case:
    recipe: str
    ranks: int
    overrides: list
    quick: bool
    threads: int
    prepares: bool

    @property
    def name(self):
        return " ".join([self.recipe, f"--ranks {self.ranks}", *self.overrides])


def cases():
    words = {"GPT2": GPT2, "UNTIED": UNTIED, "PIPELINE": PIPELINE}
    for line in CASES.strip().splitlines():
        recipe, ranks, mark, overrides = line[:4].strip(), int(line[5]), line[7:8], line[9:]
        yield Case(recipe, ranks, overrides.format(**words).split(), mark == "*", 2 if mark == "t" else 1, mark == "p")


def run(command, folder, threads):
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=variables, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=DEADLINE_SECONDS)
    return done.returncode, done.stdout, done.stderr


def train(troika, side, case):
    """The run's folder; raises Difference where there is none."""
    folder = side / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPES[case.recipe])
    if case.prepares and not (side / "tokens").exists():
        status, _, errors = run([troika, "data", "prepare", "tokens", "../text/*.txt", "--train-tokenizer",
                                 "--vocab-size", "300"], side, 1)
        if status:
            raise Difference(f"{troika} data prepare: exit status {status}\n{errors}")
    overrides = [word for override in case.overrides for word in ("--set", override)]
    status, _, errors = run([troika, "train", recipe.name, "--ranks", case.ranks, *overrides], folder, case.threads)
    if status:
        raise Difference(f"{troika} train: exit status {status}\n{errors}")
    return folder / "runs" / "run"


def tensors(path):
    """Name to (dtype, shape, bytes) of a safetensors file."""
    data = path.read_bytes()
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (entry["dtype"], entry["shape"], data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def compare_tensors(name, old, new):
    if old.read_bytes() == new.read_bytes():
        return
    old, new = tensors(old), tensors(new)
    apart = sorted(old.keys() ^ new.keys())
    if apart:
        raise Difference(f"{name}: tensor '{apart[0]}' is in one build's file alone")
    for tensor, value in sorted(old.items()):
        for what, before, after in zip(("dtype", "shape"), value, new[tensor]):
            if before != after:
                raise Difference(f"{name}: {what} of '{tensor}': {before} and {after}")
        if value[2] != new[tensor][2]:
            at = next(i for i, (a, b) in enumerate(zip(value[2], new[tensor][2])) if a != b)
            size = len(value[2]) // max(1, math.prod(value[1]))
            raise Difference(f"{name}: values of '{tensor}' from element {at // size} on")


def compare_metrics(old, new):
    old, new = ([json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in (old, new))
    if len(old) != len(new):
        raise Difference(f"metrics.jsonl: {len(old)} and {len(new)} lines")
    for number, (before, after) in enumerate(zip(old, new), 1):
        for key, value in before.items():
            if not NOT_COMPARED.search(key) and repr(value) != repr(after.get(key)):
                raise Difference(f"metrics.jsonl:{number}: {key}: {value!r} and {after.get(key)!r}")


def compare_bytes(name, old, new):
    if old.read_bytes() != new.read_bytes():
        raise Difference(f"{name}: bytes")


def compare_files(old, new, pattern, compare):
    """The number of files; raises Difference also where one build alone has written one."""
    names = [{str(path.relative_to(side)) for path in side.glob(pattern)} for side in (old, new)]
    if names[0] != names[1]:
        raise Difference(f"{sorted(names[0] ^ names[1])[0]}: written by one build alone")
    for name in sorted(names[0]):
        compare(name, old / name, new / name)
    return len(names[0])


def compare_runs(case, old, new):
    compare_metrics(old, new)
    dumps = compare_files(old, new, "dump/**/*.safetensors", compare_tensors)
    if dumps != 3 * STEPS or compare_files(old, new, "model.safetensors", compare_tensors) != 1:
        raise Difference(f"{dumps} dumps, or no model: nothing to compare")
    if case.prepares and not compare_files(old.parents[2] / "tokens", new.parents[2] / "tokens", "*", compare_bytes):
        raise Difference("no token shards: nothing to compare")


def compare_example(troikas, folders, scratch, program, ranks, *arguments):
    digests = []
    for troika, folder in zip(troikas, folders):
        status, output, errors = run([troika, "launch", "--ranks", ranks, "--", folder / program, *arguments], scratch, 1)
        found = re.findall(r"^parameters .*", output, re.M)
        if status or len(found) != 1:
            raise Difference(f"{folder / program}: exit status {status}, {len(found)} digests\n{errors}")
        digests.append(found[0])
    if digests[0] != digests[1]:
        raise Difference(f"{digests[0]} and {digests[1]}")


def write_text(folder):
    """Documents of many lengths, some empty; the same each time."""
    folder.mkdir()
    for number in range(24):
        words = [f"word{(number * number + 7 * i) % 61} " for i in range(5 * (number % 9))]
        (folder / f"{number}.txt").write_text("".join(words) + ("é\n" if number % 5 else ""))


def both(troikas, scratch, case):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        old, new = [pool.submit(train, *each, case) for each in zip(troikas, (scratch / "old", scratch / "new"))]
        compare_runs(case, old.result(), new.result())


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path, metavar="OLD_TROIKA", help="the command before the change")
    parser.add_argument("new", type=pathlib.Path, metavar="NEW_TROIKA", help="the command after it")
    parser.add_argument("--quick", action="store_true", help="a third of the recipes")
    parser.add_argument("--only", metavar="WORD", default="", help="recipes whose line has WORD in it")
    parser.add_argument("--old-examples", type=pathlib.Path, metavar="DIR", help="with own_module, own_zero and own_pipeline")
    parser.add_argument("--new-examples", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args(arguments)
    if (options.old_examples is None) != (options.new_examples is None):
        parser.error("--old-examples and --new-examples go together")
    return options


def work(options, scratch):
    """Name of each comparison, and what makes it."""
    troikas = [path.resolve() for path in (options.old, options.new)]
    for case in cases():
        if options.only in case.name and (case.quick or not options.quick):
            yield case.name, lambda case=case: both(troikas, scratch, case)
    if options.old_examples:
        folders = [path.resolve() for path in (options.old_examples, options.new_examples)]
        for example in EXAMPLES:
            yield " ".join(map(str, example)), lambda it=example: compare_example(troikas, folders, scratch, *it)


def main():
    options = parse(sys.argv[1:])
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="troika-compare-"))
    write_text(scratch / "text")
    begin, first, compared = time.monotonic(), None, 0
    for name, compare in work(options, scratch):
        try:
            compare()
            print(f"same    {name}", flush=True)
        except (Difference, OSError, ValueError, subprocess.TimeoutExpired) as difference:
            print(f"DIFFERS {name}\n        {difference}", flush=True)
            if not first:
                first = f"{name}: {difference}"
                shutil.copytree(scratch, scratch.with_name(scratch.name + "-first"), dirs_exist_ok=True)
        compared += 1
    shutil.rmtree(scratch)
    print(f"{compared} compared in {time.monotonic() - begin:.0f} s", end="")
    if first or not compared:
        print(f"; first difference (runs: {scratch}-first): {first}" if first else ": nothing to compare")
        return 1
    print(": every number is the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
