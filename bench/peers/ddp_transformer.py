"""The transformer of bench/own_transformer under PyTorch DDP, on one rank of torchrun's.

torchrun --nproc-per-node 2 ddp_transformer.py --steps 12 --precision bf16

Modules are made in the same order as there, from the same seed, so that losses can be compared.
"""

import argparse
import json
import time

import torch
import torch.distributed
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

DIM, HEADS, LAYERS, WORDS, LENGTH, SAMPLES = 384, 6, 6, 50304, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_norm, self.attention, self.projection = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.second_norm, self.wide, self.narrow = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        parts = self.attention(self.first_norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second_norm(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, ids, targets):
        hidden = self.words(ids) + self.places(torch.arange(LENGTH))
        for block in self.blocks:
            hidden = block(hidden)
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    found = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(1337)
    net = Transformer()
    model = DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    called = torch.compile(model) if found.compile else model
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(1337 + torch.distributed.get_rank())
    batches = [torch.randint(WORDS, (SAMPLES, LENGTH + 1)) for _ in range(found.steps)]
    seconds, losses = [], []
    torch.distributed.barrier()
    started = time.perf_counter()
    for tokens in batches:
        step_started = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=found.precision == "bf16"):
            loss = called(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - step_started)
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"step_seconds": seconds, "losses": losses, "seconds": time.perf_counter() - started,
                          "parameters": sum(each.numel() for each in net.parameters()),
                          "targets_per_step": SAMPLES * LENGTH * torch.distributed.get_world_size()}), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
