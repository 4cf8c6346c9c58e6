"""What the peers share: a training loop in bf16 by autocast on one device, eager or compiled, and its timing.

A step is timed from clearing the gradients until its loss is read, as on troika's side.
"""

import json
import time

import torch


def train(model, batch, loss_of, optimizer, steps, compiled, clip=0.0):
    """Prints one line of JSON. `loss_of(model, *batch)` is the loss."""
    device = batch[0].device
    called = torch.compile(model) if compiled else model
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(called, *batch)
        loss.backward()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        value = loss.item()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"step_seconds": seconds, "loss": value, "parameters": count(model), "torch": torch.__version__}))


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())
