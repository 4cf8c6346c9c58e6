"""The matrix products of a step of a recipe's GPT and nothing else, on one rank of torchrun's: what no program can be faster than.

torchrun --nproc-per-node 2 products.py ../recipes/gpt-words.toml --precision bf16

All ranks compute at once, with memory that has been touched. The faster of oneDNN and MKL counts for each product.
Attention's own products, which are small, are left out. Prints the seconds of the slowest rank.
"""

import argparse
import json
import statistics
import time
import tomllib

import torch
import torch.distributed

REPEATS = 5


def products(model, tokens):
    """(rows, inner, columns, how many in a step) of the forward pass and of both gradients."""
    dim, inner, layers = model["dim"], model["ffn_dim"], model["layers"]
    linear = [(dim, 3 * dim, layers), (dim, dim, layers), (dim, 2 * inner, layers), (inner, dim, layers),
              (dim, model["vocab_size"], 1)]
    for inputs, outputs, times in linear:
        yield tokens, inputs, outputs, times
        yield tokens, outputs, inputs, times
        yield outputs, tokens, inputs, times


def median_seconds(act):
    act()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def fastest(rows, inner, columns, dtype):
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    seconds = [median_seconds(lambda: torch.mm(left, right, out=out))]
    if dtype == torch.float32:  # of which torch.mm takes MKL's
        weight = right.t().contiguous()
        seconds.append(median_seconds(lambda: torch.ops.mkldnn._linear_pointwise(left, weight, None, "none", [], "")))
    return min(seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    found = parser.parse_args()
    with open(found.recipe, "rb") as file:
        recipe = tomllib.load(file)
    torch.distributed.init_process_group("gloo")
    tokens = recipe["train"]["micro_batch_size"] * recipe["model"]["seq_len"]
    dtype = torch.bfloat16 if found.precision == "bf16" else torch.float32
    total = 0.0
    for rows, inner, columns, times in products(recipe["model"], tokens):
        torch.distributed.barrier()
        total += times * fastest(rows, inner, columns, dtype)
    slowest = torch.tensor([total], dtype=torch.float64)
    torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"seconds": slowest.item(), "tokens": tokens * torch.distributed.get_world_size()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
