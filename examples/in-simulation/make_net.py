"""Writes net.pt2, the network of materials.c and materials.f90: python3 make_net.py

How a point changes depends on the field around it, and on how fast its material conducts. PyTorch is needed here only.
"""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Embedding(2, 1)
        self.slope = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.gain.weight)

    def forward(self, field, material):
        gain = self.gain(material)
        return {"change": gain * self.slope(field), "gain": gain}


torch.manual_seed(0)
example = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
samples = {name: {0: torch.export.Dim.DYNAMIC} for name in ("field", "material")}
program = torch.export.export(Net().train(), example, dynamic_shapes=samples, strict=False)
torch.export.save(program, "net.pt2")
