#!/usr/bin/env python3
"""Judges a run of a residual network by modules of PyTorch in fp64, which load its dump under torchvision's names.

Recomputes the mean loss per sample, every gradient, and the running statistics that the step leaves behind, and
compares them with what the run wrote. What a batch-norm sees as one batch is a microbatch of one data rank, or with
norm = "sync_batch" the microbatches with the same number of all data ranks. The defaults are the bounds for fp64 runs.
"""
import itertools
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import dump as dumps

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Block(nn.Module):
    """Basic, or the bottleneck whose 3x3 convolution has the stride (torchvision's BasicBlock and Bottleneck)."""

    def __init__(self, inputs, width, stride, bottleneck, norm):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            sizes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        self.count = len(sizes)
        for i, (before, after, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{i}", nn.Conv2d(before, after, kernel, step, padding=kernel // 2, bias=False))
            self.add_module(f"bn{i}", norm(after))
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
            y = F.relu(y) if i < self.count else y
        return F.relu(y + self.downsample(x))


class Resnet(nn.Module):
    """Has the parameters and buffers of torchvision's ResNet, in any widths."""

    def __init__(self, model):
        super().__init__()

        def norm(channels):
            return nn.BatchNorm2d(channels, model["norm_eps"], model["norm_momentum"])

        width, bottleneck = model["width"], model["block"] == "bottleneck"
        kernel, stride, self.pools = (7, 2, True) if model["stem"] == "224x224" else (3, 1, False)
        self.conv1 = nn.Conv2d(model["channels"], width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = norm(width)
        channels, self.groups = width, []
        for group, blocks in enumerate(model["blocks"]):
            row = nn.Sequential()
            for i in range(blocks):
                row.append(Block(channels, width << group, 2 if group > 0 and i == 0 else 1, bottleneck, norm))
                channels = (width << group) * (4 if bottleneck else 1)
            self.groups.append(f"layer{group + 1}")
            self.add_module(self.groups[-1], row)
        self.fc = nn.Linear(channels, model["classes"])

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.max_pool2d(x, 3, 2, 1) if self.pools else x
        for name in self.groups:
            x = self.get_submodule(name)(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def is_buffer(name):
    return name.endswith(BUFFERS)


def batches_of(recipe, samples):
    """Which samples a batch-norm sees at once, in their order: a list for each rank whose statistics are its own."""
    train, ranks = recipe["train"], recipe["parallel"]["data"]
    own = [part.split(train["micro_batch_size"]) for part in torch.arange(samples).tensor_split(ranks)]
    if recipe["model"]["norm"] == "batch":
        return own
    together = itertools.zip_longest(*own, fillvalue=torch.empty(0, dtype=torch.int64))
    return [[torch.cat(parts) for parts in together]]


def loss_gradients_and_buffers(recipe, tensors, batch):
    """Mean loss per sample, the gradient of every parameter, and the buffers after the step, by name."""
    network = Resnet(recipe["model"]).double()
    images, targets = batch["images"].double(), batch["targets"]
    total, left = 0.0, []
    for rank in batches_of(recipe, len(targets)):
        network.load_state_dict(tensors)  # strict: neither side has a tensor that the other has not
        for samples in rank:
            loss = F.cross_entropy(network(images[samples]), targets[samples], reduction="sum") / len(targets)
            loss.backward()
            total += loss.item()
        left.append({name: value.double().clone() for name, value in network.named_buffers()})
    gradients = {name: value.grad for name, value in network.named_parameters()}
    buffers = {name: torch.stack([each[name] for each in left]).mean(0) for name in left[0]}
    # A count is that of the first rank, which has as many microbatches as any.
    counts = {name: value for name, value in left[0].items() if name.endswith(BUFFERS[-1])}
    return total, gradients, {**buffers, **counts}


def buffers_after(dump):
    """What the run had after the step: from the next step's dump, or from model.safetensors; None if there is none."""
    if dump.step == dump.recipe["train"]["steps"]:
        path = dump.run / "model.safetensors"
    else:
        path = dump.run / "dump" / f"step-{dump.step + 1}" / "parameters.safetensors"
    if not path.exists():
        return None
    return {name: value for name, value in load_file(path).items() if is_buffer(name)}


def scale_of(name, buffers):
    """What rounding is measured by. A mean of values around zero is as exact as the values are, not as it is itself."""
    largest = buffers[name].abs().max().item()
    if not name.endswith("running_mean"):
        return largest
    return max(largest, buffers[name.removesuffix("mean") + "var"].max().sqrt().item())


def compare_buffers(expected, found, tolerance):
    if expected.keys() != found.keys():
        raise dumps.CannotJudge(f"the judge's and the run's buffers differ: "
                                f"{', '.join(sorted(expected.keys() ^ found.keys()))}")
    rows = []
    for name, value in expected.items():
        size = scale_of(name, expected)
        rows.append(dumps.Row(name, size, (found[name].double() - value).abs().max().item(), tolerance * size))
    return rows


def main():
    arguments = dumps.parse_gradient_judge(__doc__, tolerance=1e-12, floor=1e-14)

    def judge(dump):
        loss, gradients, buffers = loss_gradients_and_buffers(dump.recipe, dump.parameters, dump.batch)
        rows = [dumps.compare_loss(dump, loss, arguments.tolerance),
                *dumps.compare_gradients(dump, gradients, arguments.tolerance, arguments.floor)]
        found = buffers_after(dump)
        return rows if found is None else [*rows, *compare_buffers(buffers, found, arguments.tolerance)]

    return dumps.judge_run(arguments.run, arguments.step, "fp64 reference", judge, kind="resnet")


if __name__ == "__main__":
    sys.exit(main())
