"""An MLP under torchrun that goes on from its newest checkpoint: FOLDER STEPS EVERY. Rank 0 writes a line a step."""

import os
import sys

import torch
import torch.distributed as dist

folder, steps, every = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(),
                          torch.nn.Linear(256, 10))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
path, first = os.path.join(folder, "checkpoint.pt"), 1
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"] + 1
for step in range(first, steps + 1):
    x = torch.randn(32, 64)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), torch.randint(10, (32,))).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        with open(os.path.join(folder, "steps"), "a") as file:
            file.write(f"{os.getpid()} {step}\n")
        if step % every == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
            os.replace(path + ".new", path)
dist.destroy_process_group()
