"""Modules that the tests of TorchScript files train."""

import torch
from torch import nn


class Averaging(nn.Module):
    """Assigns to its buffers in training, of which one is in use for the gradient of its weight."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 6 * 6, 4)
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = self.fc(x.flatten(1))
        scaled = x * self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.passes += 1
        return scaled - self.mean


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Averaging()
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.body(x))


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            x = self.downsample(x)
        y += x
        return self.relu(y)


class Resnet18(nn.Module):
    """torchvision's, under its names."""

    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Forces(nn.Module):
    """Gives the gradient of an energy by its input, and writes to that before."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 6 * 6, 4)

    def forward(self, x):
        x.mul_(0.5)
        x.requires_grad_(True)
        energy = torch.tanh(self.fc(x.flatten(1))).sum()
        forces = torch.autograd.grad([energy], [x], create_graph=True)[0]
        assert forces is not None
        return forces


class Looking(nn.Module):
    """Looks rows up."""

    def __init__(self, sparse=False):
        super().__init__()
        self.table = nn.Embedding(7, 5, sparse=sparse)

    def forward(self, ids):
        return self.table(ids).mean(1)


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 6 * 6, 1)


class Answers(nn.Module):
    """Returns a dictionary in another order than the recipe names it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x) -> dict[str, torch.Tensor]:
        scores = self.fc(x[:, :, 0, 0])
        return {"hidden": scores * 2 + 1, "scores": scores}
