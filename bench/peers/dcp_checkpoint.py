"""torch.distributed.checkpoint on what bench/checkpoint/checkpoint_bench.cc saves: FOLDER LAYERS WIDTH SAVES."""

import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

folder, layers, width, saves = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for parameter in net.parameters():
    parameter.grad = torch.full_like(parameter, 1e-3)
optimizer.step()
optimizer.zero_grad()


def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


stalls, written, plain = [], [], []
for step in range(1, saves + 1):
    dist.barrier()
    begin = time.perf_counter()
    future = dcp.async_save(state(), checkpoint_id=os.path.join(folder, f"async-{step}"))
    stalls.append(time.perf_counter() - begin)
    future.result()
    written.append(time.perf_counter() - begin)
    dist.barrier()
    if dist.get_rank() == 0 and step > 1:
        shutil.rmtree(os.path.join(folder, f"async-{step - 1}"))
for step in range(1, saves + 1):
    dist.barrier()
    begin = time.perf_counter()
    dcp.save(state(), checkpoint_id=os.path.join(folder, f"plain-{step}"))
    plain.append(time.perf_counter() - begin)
    dist.barrier()
    if dist.get_rank() == 0 and step > 1:
        shutil.rmtree(os.path.join(folder, f"plain-{step - 1}"))
dist.barrier()
begin = time.perf_counter()
loaded = state()
dcp.load(loaded, checkpoint_id=os.path.join(folder, f"plain-{saves}"))
set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
dist.barrier()
seconds = time.perf_counter() - begin
if dist.get_rank() == 0:
    print(json.dumps({"stall_seconds": stalls, "async_seconds": written, "save_seconds": plain, "load_seconds": seconds}))
dist.destroy_process_group()
