"""The GPT of a recipe, spread over ranks by what PyTorch has for it, on one rank of torchrun's.

torchrun --nproc-per-node 2 layouts_gpt.py ../recipes/layouts.toml --layout tensor --micro-batch-size 8 --steps 12

Layouts: alone, on one rank; ddp; fsdp-keep and fsdp (FSDP2 with reshard_after_forward False and True); tensor (DTensor,
with sequence parallelism and the loss of split logits); 1f1b, zb1p and zb-v (torch.distributed.pipelining). Nothing is
made whole on a rank that does not keep it whole. With --check the ranks load the parameters that troika began with and
the batches of its first two steps, compare the gradients of the first with troika's, and tell the losses of both.

Of a recipe with [optimizer] groups only the parameters are trained that match a group before the one that is frozen.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import tomllib

import torch
import torch.distributed as dist
from ddp_gpt import Gpt, loss_of, make_batches, make_optimizer, rotary_table
from measure import timed_steps
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble,
                                          ScheduleZBVZeroBubble)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn.parallel import DistributedDataParallel


def on_meta(make, *arguments):
    with torch.device("meta"):
        return make(*arguments)


def fill(module, recipe, whole):
    """Gives a module of no memory its own: shards of `whole` by name, or initial values where that is None."""
    module.to_empty(device="cpu")
    cosine, sine = rotary_table(recipe["seq_len"], recipe["dim"] // recipe["heads"])
    module.cosine.copy_(cosine)
    module.sine.copy_(sine)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            split = isinstance(parameter, DTensor)
            own = parameter.to_local() if split else parameter
            if whole is None:
                own.normal_(std=0.02) if parameter.dim() == 2 else own.fill_(1)
            elif split:
                own.copy_(distribute_tensor(whole[name], parameter.device_mesh, parameter.placements).to_local())
            else:
                own.copy_(whole[name])


def freeze(module, recipe):
    """Freezes what the first group of [optimizer] groups that matches says is frozen."""
    groups = recipe["optimizer"].get("groups", [])
    for name, parameter in module.named_parameters():
        found = next((group for group in groups if fnmatch.fnmatchcase(name, group["match"])), {})
        parameter.requires_grad_(not found.get("frozen", False))


def clip(parameters, limit):
    """By the norm over all ranks' gradients, which DTensors know."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    norm = nn.utils.get_total_norm(parameter.grad for parameter in parameters)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)


class Replicas:
    """DDP: every rank has the model, and a share of the samples."""

    splits_samples = True

    def __init__(self, recipe, whole):
        self.module = on_meta(Gpt, recipe["model"])
        fill(self.module, recipe["model"], whole)
        self.parallel = DistributedDataParallel(self.module, gradient_as_bucket_view=True, broadcast_buffers=False)

    def named_parameters(self):
        return self.module.named_parameters()

    def gradients(self, inputs, targets):
        loss = self.parallel(inputs, targets)
        loss.backward()
        return loss.item()

    def clip(self, limit):
        clip(self.module.parameters(), limit)


class Alone(Replicas):
    """A process with all of the model and all samples, which talks to nobody."""

    def __init__(self, recipe, whole):
        self.module = on_meta(Gpt, recipe["model"])
        fill(self.module, recipe["model"], whole)
        self.parallel = self.module


class Shards(Replicas):
    """FSDP2: a unit for each block, and one for the rest."""

    def __init__(self, recipe, whole, reshard_after_forward):
        self.module = on_meta(Gpt, recipe["model"])
        freeze(self.module, recipe)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in self.module.model["layers"].values():
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward)
        fully_shard(self.module, mesh=mesh, reshard_after_forward=reshard_after_forward)
        fill(self.module, recipe["model"], whole)
        self.parallel = self.module


TENSOR_PLAN = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "model.layers.*.input_layernorm": SequenceParallel(),
    "model.layers.*.self_attn": PrepareModuleInput(input_layouts=(Shard(1), None, None),
                                                   desired_input_layouts=(Replicate(), None, None)),
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
    "model.layers.*.post_attention_layernorm": SequenceParallel(),
    "model.layers.*.mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    "model.norm": SequenceParallel(),
    "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}


class Tensor(Replicas):
    splits_samples = False

    def __init__(self, recipe, whole):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.module = parallelize_module(on_meta(Gpt, recipe["model"]), mesh, TENSOR_PLAN)
        fill(self.module, recipe["model"], whole)

    def gradients(self, inputs, targets):
        with loss_parallel():
            loss = self.module(inputs, targets)
            loss.backward()
        return loss.item()


class Stage(Gpt):
    """The `index`-th of `stages` equal parts of the layers, and what is at the ends."""

    def __init__(self, recipe, index, stages):
        super().__init__(recipe)
        layers, last = recipe["layers"], stages - 1
        kept = range(layers * index // stages, layers * (index + 1) // stages)
        for name in [name for name in self.model["layers"] if int(name) not in kept]:
            del self.model["layers"][name]
        if index > 0:
            del self.model["embed_tokens"]
        if index < last:
            del self.model["norm"]
            self.lm_head = None

    forward = Gpt.logits


class Pipeline:
    """`order(ranks)` lists the stages of each rank."""

    splits_samples = False

    def __init__(self, recipe, whole, schedule, order, microbatches):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        mine = order(ranks)[rank]
        count = ranks * len(mine)
        self.modules = [on_meta(Stage, recipe["model"], index, count) for index in mine]
        for module in self.modules:
            fill(module, recipe["model"], whole)
        stages = [PipelineStage(module, index, count, torch.device("cpu")) for module, index in zip(self.modules, mine)]
        self.first, self.last = 0 in mine, count - 1 in mine
        self.schedule = schedule(stages[0] if schedule is Schedule1F1B else stages, microbatches, loss_fn=loss_of)

    def named_parameters(self):
        return (named for module in self.modules for named in module.named_parameters())

    def gradients(self, inputs, targets):
        losses = [] if self.last else None
        self.schedule.step(*([inputs] if self.first else []), target=targets if self.last else None, losses=losses,
                           return_outputs=False)
        return sum(loss.item() for loss in losses) / len(losses) if losses else None

    def clip(self, limit):
        parameters = [parameter for _, parameter in self.named_parameters()]
        square = nn.utils.get_total_norm(parameter.grad for parameter in parameters) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(parameters, limit, square.sqrt())


def one_each(ranks):
    return [[rank] for rank in range(ranks)]


def v_shape(ranks):
    return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]


def make_layout(name, recipe, microbatches, whole):
    if name == "alone":
        return Alone(recipe, whole)
    if name == "ddp":
        return Replicas(recipe, whole)
    if name.startswith("fsdp"):
        return Shards(recipe, whole, reshard_after_forward=name == "fsdp")
    if name == "tensor":
        return Tensor(recipe, whole)
    schedule, order = {"1f1b": (Schedule1F1B, one_each), "zb1p": (ScheduleInterleavedZeroBubble, one_each),
                       "zb-v": (ScheduleZBVZeroBubble, v_shape)}[name]
    return Pipeline(recipe, whole, schedule, order, microbatches)


def trained(layout):
    return {name: parameter for name, parameter in layout.named_parameters() if parameter.requires_grad}


def count(layout):
    """Elements of the whole model."""
    total = torch.tensor(sum(parameter.numel() for _, parameter in layout.named_parameters()))
    if isinstance(layout, Pipeline):
        dist.all_reduce(total)
    return total.item()


def check(layout, recipe, folder, share):
    from safetensors.torch import load_file

    def loss_of_step(number):
        batch = load_file(folder / f"step-{number}" / "batch.safetensors")
        return mean_of_ranks(layout.gradients(batch["input_ids"][share], batch["targets"][share]))

    named = trained(layout)
    optimizer = make_optimizer(named.values(), recipe["optimizer"])
    losses = [loss_of_step(1)]
    theirs = load_file(folder / "step-1" / "gradients.safetensors")
    largest = torch.zeros(())
    for name, parameter in named.items():
        ours = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        largest = torch.maximum(largest, (ours - theirs[name]).abs().max() / ours.abs().max())
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    layout.clip(recipe["train"]["grad_clip"])
    optimizer.step()
    optimizer.zero_grad()
    return {"largest_gradient_error": largest.item(), "losses": [*losses, loss_of_step(2)]}


def mean_of_ranks(loss):
    """Of those that have one."""
    found = torch.tensor([loss or 0, loss is not None], dtype=torch.float64)
    dist.all_reduce(found)
    return (found[0] / found[1]).item()


def train(layout, recipe, samples, steps):
    torch.manual_seed(1337 + (dist.get_rank() if layout.splits_samples else 0))
    batches = make_batches(recipe["model"], samples, steps)
    optimizer = make_optimizer(trained(layout).values(), recipe["optimizer"])

    def step(inputs, targets):
        optimizer.zero_grad()
        loss = layout.gradients(inputs, targets)
        layout.clip(recipe["train"]["grad_clip"])
        optimizer.step()
        return loss

    dist.barrier()
    seconds, total, _, _ = timed_steps(step, batches)
    return {"step_seconds": seconds, "seconds": total, "threads": torch.get_num_threads(),
            "targets_per_step": recipe["train"]["global_batch_size"] * recipe["model"]["seq_len"],
            "peak_memory_bytes": of_all_ranks(memory("VmHWM:"))}


def memory(key):
    """Bytes of this process that are resident (VmRSS:), or were at the most (VmHWM:)."""
    status = pathlib.Path("/proc/self/status").read_text().split()
    return int(status[status.index(key) + 1]) * 1024


def of_all_ranks(number):
    mine = torch.tensor(number)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [one.item() for one in found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=pathlib.Path, help="the recipe that troika trains")
    parser.add_argument("--layout", required=True)
    parser.add_argument("--micro-batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--check", metavar="FOLDER", type=pathlib.Path, help="compare with troika's dump of two steps")
    found = parser.parse_args()
    recipe = tomllib.loads(found.recipe.read_text())
    whole = None
    if found.check:
        from safetensors.torch import load_file

        whole = load_file(found.check / "step-1" / "parameters.safetensors")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    samples = recipe["train"]["global_batch_size"]
    torch.manual_seed(1337 + rank)
    empty = memory("VmRSS:")
    layout = make_layout(found.layout, recipe, samples // found.micro_batch_size, whole)
    samples //= ranks if layout.splits_samples else 1
    if samples != found.micro_batch_size and not isinstance(layout, Pipeline):
        raise SystemExit(f"{found.layout} wants one microbatch a rank: {samples} samples")
    said = {}
    if found.check:
        share = slice(rank * samples, (rank + 1) * samples) if layout.splits_samples else slice(None)
        said |= check(layout, recipe, found.check, share)
    if found.steps:
        said |= train(layout, recipe, samples, found.steps)
    said |= {"parameters": count(layout), "without_model_bytes": empty, "torch": torch.__version__}
    if rank == 0:
        print(json.dumps(said), flush=True)
    dist.barrier()
    # Without destructors: PyTorch 2.11's group of Gloo can lock up in its own, which holds the interpreter and waits for
    # a thread that lets go of a tensor and waits for the interpreter.
    os._exit(0)


if __name__ == "__main__":
    main()
