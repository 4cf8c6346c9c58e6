"""Reading a run's dumps (`[debug] dump_steps`), and comparing what a judge computes with what the run wrote.

A judge exits with 0 if all numbers agree, 1 if one does not, 2 if it cannot judge this run.
"""
import argparse
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

IGNORED_TARGET = -100


class CannotJudge(Exception):
    """The run is one that this judge knows nothing about, or not a run at all."""


@dataclass
class Dump:
    run: Path
    step: int
    recipe: dict
    batch: dict  # input_ids, features or images, targets, sample_ids and, for isolated packing, document_ids
    parameters: dict  # and buffers
    gradients: dict
    loss: float  # of metrics.jsonl

    @property
    def model(self):
        return self.recipe["model"]

    @property
    def valid(self):
        return int((self.batch["targets"] != IGNORED_TARGET).sum())


@dataclass
class Row:
    """One comparison: `difference` must not exceed `bound`."""

    name: str
    size: float
    difference: float
    bound: float

    @property
    def agrees(self):
        return self.difference <= self.bound  # false for not-a-number

    @property
    def share(self):
        return self.difference / self.bound if self.bound > 0 else (0.0 if self.difference == 0 else float("inf"))


def dumped_steps(run):
    steps = sorted(int(folder.name.removeprefix("step-")) for folder in (run / "dump").glob("step-*"))
    if not steps:
        raise CannotJudge(f"{run} has no dump; train with --set debug.dump_steps=[1]")
    return steps


def load_dump(run, step, kind="gpt"):
    recipe = tomllib.loads((run / "recipe.toml").read_text())
    model = recipe["model"]
    if model["kind"] != kind:
        raise CannotJudge(f"model.kind is '{model['kind']}', and only {kind} is known here")
    if model.get("dropout", 0) != 0:
        raise CannotJudge("a run with dropout cannot be judged")
    folder = run / "dump" / f"step-{step}"
    batch, parameters, gradients = (
        load_file(folder / f"{name}.safetensors") for name in ("batch", "parameters", "gradients")
    )
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line.get("step") == step and "loss" in line]
    if len(losses) != 1:
        raise CannotJudge(f"metrics.jsonl has {len(losses)} lines for step {step}")
    return Dump(run, step, recipe, batch, parameters, gradients, losses[0])


def compare_loss(dump, loss, tolerance):
    return Row("loss", abs(loss), abs(loss - dump.loss), tolerance * abs(loss))


def compare_gradients(dump, gradients, tolerance, floor):
    """max|difference| <= tolerance max|g| + floor x the largest gradient of the model, for each gradient g."""
    if gradients.keys() != dump.gradients.keys():
        apart = sorted(gradients.keys() ^ dump.gradients.keys())
        raise CannotJudge(f"the judge's and the run's parameters differ: {', '.join(apart)}")
    sizes = {name: gradient.abs().max().item() for name, gradient in gradients.items()}
    least = floor * max(sizes.values())
    rows = []
    for name, gradient in gradients.items():
        if dump.gradients[name].shape != gradient.shape:
            raise CannotJudge(f"{name}: {list(dump.gradients[name].shape)} in the run, {list(gradient.shape)} here")
        difference = (dump.gradients[name].double() - gradient.double()).abs().max().item()
        rows.append(Row(name, sizes[name], difference, tolerance * sizes[name] + least))
    return rows


def report(title, rows, most=8):
    """Prints the worst comparisons; returns whether all agree."""
    failed = sum(not row.agrees for row in rows)
    verdict = f"{failed} of {len(rows)} DISAGREE" if failed else f"all {len(rows)} agree"
    print(f"{title}: {verdict}")
    print(f"  {'worst':<48} {'size':>10} {'difference':>10} {'bound':>10} {'used':>7}")
    for row in sorted(rows, key=lambda row: (row.agrees, -row.share))[:most]:
        print(f"  {row.name:<48} {row.size:>10.3e} {row.difference:>10.3e} {row.bound:>10.3e} {row.share:>7.1%}")
    return failed == 0


def exit_code(title, run, agrees):
    """What a judge exits with: `agrees()` says whether all numbers do, or raises."""
    try:
        return 0 if agrees() else 1
    except (CannotJudge, OSError, KeyError, tomllib.TOMLDecodeError) as error:
        print(f"{title}: cannot judge {run}: {error!r}", file=sys.stderr)
        return 2


def judge_run(run, step, title, judge, kind="gpt"):
    """Calls `judge(dump)`, which returns rows, for one step or for all that were dumped. Returns the exit code."""

    def agrees():
        agreed = True
        for each in [step] if step else dumped_steps(run):
            agreed &= report(f"{title}, step {each}", judge(load_dump(run, each, kind)))
        return agreed

    return exit_code(title, run, agrees)


def judge_parser(description, tolerance, tolerance_of, floor, floor_of):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--tolerance", type=float, default=tolerance, help=f"of {tolerance_of}")
    parser.add_argument("--floor", type=float, default=floor, help=f"added: this part of {floor_of}")
    return parser


def parse_gradient_judge(description, tolerance, floor):
    """The arguments of a judge of losses and gradients, step by step."""
    parser = judge_parser(description, tolerance, "the loss, and of each gradient's maximum", floor,
                          "the model's largest gradient")
    parser.add_argument("--step", type=int, help="judge this step's dump (default: all)")
    return parser.parse_args()
