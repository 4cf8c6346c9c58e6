"""The multi-layer perceptron of a recipe under PyTorch DDP, on one rank of torchrun's.

torchrun --nproc-per-node 2 ddp_mlp.py ../recipes/mlp.toml --steps 1000
"""

import torch
from measure import arguments, run
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        widths = [recipe["input_dim"], *recipe["hidden_dims"], recipe["output_dim"]]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, hidden, targets):
        for layer in self.layers[:-1]:
            hidden = F.relu(layer(hidden))
        return F.cross_entropy(self.layers[-1](hidden), targets)


def make_batches(recipe, samples, steps):
    return [(torch.randn(samples, recipe["input_dim"]), torch.randint(recipe["output_dim"], (samples,)))
            for _ in range(steps)]


def make_optimizer(parameters, recipe):
    # One call into C++ for all parameters, instead of a loop over them.
    return torch.optim.SGD(parameters, lr=recipe["lr"], momentum=recipe["momentum"],
                           weight_decay=recipe["weight_decay"], fused=True)


if __name__ == "__main__":
    run(arguments(), Mlp, make_batches, make_optimizer)
