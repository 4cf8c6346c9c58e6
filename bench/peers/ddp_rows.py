"""A large embedding of which a step touches few rows, in PyTorch DDP over Gloo, with sparse gradients or dense ones:
ddp_rows.py sparse|dense TABLE_ROWS COLUMNS ROWS STEPS."""

import json
import sys
import time

import torch
import torch.distributed as dist

kind, (table, columns, rows, steps) = sys.argv[1], map(int, sys.argv[2:])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
net = torch.nn.Sequential(torch.nn.Embedding(table, columns, sparse=kind == "sparse"), torch.nn.Linear(columns, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(steps + 1):
    if step == 1:
        dist.barrier()
        begin = time.perf_counter()
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    ids = torch.randint(0, table, (rows // ranks,), generator=generator)
    optimizer.zero_grad()
    (model(ids) - 1).square().mean().backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    print(json.dumps({"seconds_per_step": (time.perf_counter() - begin) / steps}))
dist.destroy_process_group()
