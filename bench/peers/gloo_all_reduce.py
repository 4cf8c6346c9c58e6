"""Times torch.distributed's all-reduce over Gloo as `troika bench comm` times ours, on one rank of torchrun's.

torchrun --nproc-per-node 2 gloo_all_reduce.py 0.5 4096 4194304        budget in seconds, then sizes in bytes

A repeat is a run of operations between a barrier and a check of what has come out; the slowest rank counts; the
median over the repeats is printed.
"""

import json
import math
import statistics
import sys
import time

import torch
import torch.distributed as dist

FEWEST_WARM_UPS, FEWEST, MOST = 2, 5, 10000


def repeat(tensor, pattern, times):
    """The time of one of `times` operations."""
    ranks = dist.get_world_size()
    torch.mul(pattern, dist.get_rank() + 1, out=tensor)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(tensor)
    seconds = (time.perf_counter() - start) / times
    dist.barrier()  # nobody checks on a core that another rank still needs for what is timed
    expected = pattern * (ranks * (ranks + 1) / 2 * ranks ** (times - 1))
    if not torch.allclose(tensor, expected, rtol=1e-5, atol=0):
        raise SystemExit("a wrong sum")
    return seconds


def slowest(seconds):
    all_times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(all_times, op=dist.ReduceOp.MAX)
    return all_times.tolist()


def within(value, low, high):
    return int(min(max(value, low), high))


def median(size, budget):
    pattern = (torch.arange(max(1, size // 4)) % 13 + 1).float()
    tensor = torch.empty_like(pattern)
    most = int(80 / math.log(dist.get_world_size()))
    warm_up = min(10, most)
    rounds, spent = 0, 0
    while rounds < FEWEST_WARM_UPS or spent < budget / 3:
        once = slowest([repeat(tensor, pattern, warm_up)])[0]
        rounds, spent = rounds + 1, spent + once * warm_up
    times = within(0.02 / once, 1, most)
    repeats = within(budget / (once * times), FEWEST, MOST)
    return statistics.median_high(slowest([repeat(tensor, pattern, times) for _ in range(repeats)]))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with torch.inference_mode():
        found = {size: median(size, float(sys.argv[1])) for size in map(int, sys.argv[2:])}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
