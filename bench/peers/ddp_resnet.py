"""The residual network of a recipe, for images of 32 x 32, under PyTorch DDP, on one rank of torchrun's.

torchrun --nproc-per-node 2 ddp_resnet.py ../recipes/resnet18.toml --steps 12

Names are those of torchvision's ResNet, hence of troika's dumps. Images and weights are channels last, which is the
faster layout on CPUs.
"""

import torch
from measure import arguments, run
from torch import nn
from torch.nn import functional as F


def convolution(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = convolution(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (self.downsample(x) if self.downsample else x), inplace=True)


class Resnet(nn.Module):
    def __init__(self, recipe, width=64, blocks=(2, 2, 2, 2)):
        super().__init__()
        self.conv1, self.bn1 = convolution(3, width, 3, 1), nn.BatchNorm2d(width)
        inputs = width
        self.rows = []
        for group, count in enumerate(blocks):
            row = nn.Sequential()
            for index in range(count):
                row.append(Block(inputs, width << group, 2 if group > 0 and index == 0 else 1))
                inputs = width << group
            self.rows.append(f"layer{group + 1}")
            self.add_module(self.rows[-1], row)
        self.fc = nn.Linear(inputs, recipe["classes"])
        self.to(memory_format=torch.channels_last)

    def forward(self, images, targets):
        x = F.relu(self.bn1(self.conv1(images.to(memory_format=torch.channels_last))), inplace=True)
        for name in self.rows:
            x = self.get_submodule(name)(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), targets)


def make_batches(recipe, samples, steps):
    return [(torch.randn(samples, 3, 32, 32), torch.randint(recipe["classes"], (samples,))) for _ in range(steps)]


def make_optimizer(parameters, recipe):
    return torch.optim.SGD(parameters, lr=recipe["lr"], momentum=recipe["momentum"], weight_decay=recipe["weight_decay"], fused=True)


if __name__ == "__main__":
    run(arguments(), Resnet, make_batches, make_optimizer)
