#!/usr/bin/env python3
"""Judges the updates of a run: what each step made of the parameters and gradients that it dumped.

PyTorch's optimisers and its clipping, LAMB, LARS and Lion as their papers have them, and the recipe's schedule, all in
fp64, take each dump to the next one's parameters, and the last one to those of model.safetensors. An optimiser
remembers, so every step has to be dumped. The defaults are the bounds for fp64 runs.
"""
import json
import math
import sys
import tomllib

import torch
from safetensors.torch import load_file

import dump as dumps

LARS_TRUST = 0.001


class LayerWise(torch.optim.Optimizer):
    """Updates each parameter by itself. `adapt` False in a group: no layer-wise factor."""

    def __init__(self, groups, **defaults):
        super().__init__(groups, {"lr": 0.0, **defaults})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                self.update(w, group, self.state[w])


class Lamb(LayerWise):
    """You et al. 2020, algorithm 2, with phi(x) = x; takes betas and eps."""

    def update(self, w, group, state):
        beta1, beta2 = group["betas"]
        t = state["t"] = state.get("t", 0) + 1
        m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * w.grad
        v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * w.grad**2
        r = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
        u = r + group["weight_decay"] * w
        w -= group["lr"] * trust(w, u.norm(), group) * u


class Lars(LayerWise):
    """You et al. 2017, algorithm 1, and its Nesterov variant; takes momentum and nesterov."""

    def update(self, w, group, state):
        decay, momentum = group["weight_decay"], group["momentum"]
        local = trust(w, w.grad.norm() + decay * w.norm(), group, LARS_TRUST) if w.grad.norm() > 0 else 1.0
        step = group["lr"] * local * (w.grad + decay * w)
        velocity = state["v"] = momentum * state.get("v", 0) + step
        w -= step + momentum * velocity if group["nesterov"] else velocity


class Lion(LayerWise):
    """Chen et al. 2023, algorithm 2; takes betas."""

    def update(self, w, group, state):
        beta1, beta2 = group["betas"]
        m = state.get("m", torch.zeros_like(w))
        u = torch.sign(beta1 * m + (1 - beta1) * w.grad)
        w -= group["lr"] * (u + group["weight_decay"] * w)
        state["m"] = beta2 * m + (1 - beta2) * w.grad


def trust(w, divisor, group, coefficient=1.0):
    usable = group["adapt"] and w.norm() > 0 and divisor > 0
    return coefficient * w.norm() / divisor if usable else 1.0


def decays(name):
    """Norms and biases have no weight decay."""
    return name.endswith(".weight") and "norm" not in name


def build(recipe, parameters):
    groups = [
        {
            "params": [value for name, value in parameters.items() if decays(name) == decaying],
            "weight_decay": recipe["weight_decay"] if decaying else 0.0,
        }
        for decaying in (True, False)
    ]
    own = {key: recipe[key] for key in ("betas", "eps", "momentum", "nesterov") if key in recipe}
    if recipe["kind"] == "sgd":
        return torch.optim.SGD(groups, lr=0.0, **own)
    if recipe["kind"] == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, **own)
    groups = [{**group, "adapt": decaying} for group, decaying in zip(groups, (True, False))]
    return {"lamb": Lamb, "lars": Lars, "lion": Lion}[recipe["kind"]](groups, **own)


def learning_rate(optimizer, train, step):
    """Of step 1, 2, ...: an even rise, then the schedule, which is at min_lr in the last step."""
    peak, least, rise, last = optimizer["lr"], optimizer["min_lr"], optimizer["warmup_steps"], train["steps"]
    base = optimizer["lr_base_batch_size"]
    times = train["global_batch_size"] / base if base else 1
    if step < rise and not base:
        return peak * step / rise
    if step < rise:  # Goyal et al. 2017, section 2.2: from the rate of the small batch
        return peak + (times * peak - peak) * (step - 1) / (rise - 1) if times > 1 else times * peak
    if step <= rise or optimizer["schedule"] == "constant":
        return times * peak
    over = (step - rise) / (last - rise)
    if optimizer["schedule"] == "linear":
        height = 1 - over
    elif optimizer["schedule"] == "cosine":
        height = (1 + math.cos(math.pi * over)) / 2
    else:  # wsd: the last fifth falls with the root of its own time
        fall = min(last - rise, max(1, round(last / 5)))
        height = 1 - math.sqrt(max(0, step - (last - fall)) / fall)
    return times * (least + (peak - least) * height)


def double(tensors):
    return {name: value.double() for name, value in tensors.items()}


class UpdateJudge:
    def __init__(self, run, tolerance, floor):
        self.run, self.tolerance, self.floor = run, tolerance, floor
        self.recipe = tomllib.loads((run / "recipe.toml").read_text())
        self.metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = dumps.dumped_steps(run)
        if steps != list(range(1, self.recipe["train"]["steps"] + 1)):
            raise dumps.CannotJudge(f"every step has to be dumped, and the dumps are of {steps}")
        self.parameters = self.tensors(1, "parameters")
        self.optimizer = build(self.recipe["optimizer"], self.parameters)

    def tensors(self, step, what):
        return double(load_file(self.run / "dump" / f"step-{step}" / f"{what}.safetensors"))

    def after(self, step):
        """The parameters that the run had after this step."""
        last = step == self.recipe["train"]["steps"]
        return double(load_file(self.run / "model.safetensors")) if last else self.tensors(step + 1, "parameters")

    def judge(self, step):
        """Rows for the rate, the norm and each parameter, of which the judge then takes the run's value."""
        before = {name: value.clone() for name, value in self.parameters.items()}
        for name, gradient in self.tensors(step, "gradients").items():
            self.parameters[name].grad = gradient
        wanted = learning_rate(self.recipe["optimizer"], self.recipe["train"], step)
        line = self.metrics[step - 1]
        rows = [dumps.Row("learning_rate", wanted, abs(line["learning_rate"] - wanted), 1e-14 * wanted)]
        norm = self.clip()
        if math.isfinite(norm):
            reported = line["grad_norm"] if line["grad_norm"] is not None else math.nan
            rows.append(dumps.Row("grad_norm", norm, abs(reported - norm), self.tolerance * norm))
            for group in self.optimizer.param_groups:
                group["lr"] = wanted
            self.optimizer.step()
        elif line["grad_norm"] is not None:
            raise dumps.CannotJudge(f"step {step}: the gradients are not finite, and their norm in the metrics is")
        return rows + self.compare(before, self.after(step))

    def clip(self):
        most = self.recipe["train"]["grad_clip"]
        return torch.nn.utils.clip_grad_norm_(self.parameters.values(), most if most > 0 else math.inf).item()

    @torch.no_grad()
    def compare(self, before, after):
        rows = []
        for name, value in self.parameters.items():
            change = (value - before[name]).abs().max().item()
            rounding = self.floor * value.abs().max().item() if change > 0 else 0.0  # a skipped step changes no bit
            difference = (value - after[name]).abs().max().item()
            rows.append(dumps.Row(name, change, difference, self.tolerance * change + rounding))
            value.copy_(after[name])
        return rows


def judge_run(run, tolerance, floor):
    judge = UpdateJudge(run, tolerance, floor)
    agreed = True
    for step in dumps.dumped_steps(run):
        agreed &= dumps.report(f"update, step {step}", judge.judge(step))
    return agreed


def main():
    arguments = dumps.judge_parser(
        __doc__, 1e-12, "the norm, and of each parameter's change", 1e-15, "each parameter's maximum"
    ).parse_args()
    return dumps.exit_code(
        "update", arguments.run, lambda: judge_run(arguments.run, arguments.tolerance, arguments.floor)
    )


if __name__ == "__main__":
    sys.exit(main())
