"""What the peers share: one rank of a PyTorch DDP job that trains on batches made in advance, and its timing.

A step is timed from fetching the batch from memory to the end of the optimiser's update, as troika's
`step_seconds` is. Each peer also has `--check`: it loads the parameters and the batch that troika dumped at
step 1, and compares its own gradients with troika's, so that a pair that does different work is not timed.
"""

import argparse
import json
import time
import tomllib

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel


WHOLE_MODEL_MB = 1 << 12


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", help="the recipe that troika trains")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--hook", choices=["none", "bf16", "power_sgd"], default="none", help="what compresses gradients")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of products, by autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile, which needs a C++ compiler at run time")
    parser.add_argument("--check", metavar="FOLDER", help="compare with troika's dump of a step")
    found = parser.parse_args()
    with open(found.recipe, "rb") as file:
        found.recipe = tomllib.load(file)
    return found


def run(found, make_model, make_batches, make_optimizer):
    """`make_model(recipe)` is a module from (inputs, targets) to the mean loss."""
    torch.manual_seed(1337)
    model = make_model(found.recipe["model"])
    if found.check:
        print(json.dumps(check(model, found.check, found.recipe["train"]["micro_batch_size"])))
    else:
        train(found, model, make_batches, make_optimizer)


def check(model, folder, samples):
    """Each microbatch by itself, as what a batch-norm sees, in the precision of the dump."""
    from safetensors.torch import load_file

    dumped = load_file(f"{folder}/parameters.safetensors")
    batch = load_file(f"{folder}/batch.safetensors")
    theirs = load_file(f"{folder}/gradients.safetensors")
    parameters = {name: dumped[name] for name, _ in model.named_parameters()}  # the same names and shapes
    model.to(next(iter(parameters.values())).dtype)  # before the values: they are not rounded
    model.load_state_dict({**model.state_dict(), **parameters}, strict=True)
    inputs = next(batch[name] for name in ("input_ids", "features", "images") if name in batch)
    for first in range(0, len(inputs), samples):
        part = slice(first, first + samples)
        given = inputs[part].to(next(model.parameters()).dtype) if inputs.is_floating_point() else inputs[part]
        (model(given, batch["targets"][part]) * samples / len(inputs)).backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    errors = [((ours[name] - theirs[name]).abs().max() / ours[name].abs().max()).item() for name in ours]
    return {"parameters": count(model), "largest_gradient_error": max(errors)}


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def train(found, model, make_batches, make_optimizer):
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    recipe = found.recipe
    samples, rest = divmod(recipe["train"]["global_batch_size"], world)
    if rest or samples != recipe["train"]["micro_batch_size"]:
        raise SystemExit("the peers want one microbatch a rank: train.global_batch_size = ranks x micro_batch_size")
    torch.manual_seed(1337 + rank)
    batches = make_batches(recipe["model"], samples, found.steps)
    # Gradients live in the buckets, which spares DDP a copy; there are no buffers to broadcast each step.
    # PowerSGD's hook starts collectives when others end, over Gloo in another order on each rank: several buckets crash it.
    cap = WHOLE_MODEL_MB if found.hook == "power_sgd" else None
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False, bucket_cap_mb=cap)
    add_hook(parallel, found.hook)
    called = torch.compile(parallel) if found.compile else parallel
    optimizer = make_optimizer(model.parameters(), recipe["optimizer"])

    def step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=found.precision == "bf16"):
            loss = called(inputs, targets)
        loss.backward()
        if recipe["train"]["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_(parallel.parameters(), recipe["train"]["grad_clip"])
        optimizer.step()
        return loss.item()  # of this rank only: troika's is the mean over all ranks, which costs it an all-reduce

    torch.distributed.barrier()
    seconds, total, loss, first_step_at = timed_steps(step, batches)
    if rank == 0:
        print(json.dumps({
            "step_seconds": seconds, "seconds": total, "loss": loss, "first_step_at": first_step_at, "parameters": count(model),
            "targets_per_step": batches[0][1].numel() * world, "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }), flush=True)
    torch.distributed.destroy_process_group()


def add_hook(parallel, name):
    if name == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        parallel.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif name == "power_sgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def timed_steps(step, batches):
    """`step(inputs, targets)` trains, and is the loss."""
    seconds = []
    started, first_step_at = time.perf_counter(), None
    for batch in batches:
        step_started = time.perf_counter()
        value = step(*batch)
        seconds.append(time.perf_counter() - step_started)
        first_step_at = first_step_at or time.time()
    return seconds, time.perf_counter() - started, value, first_step_at
