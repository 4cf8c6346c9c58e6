"""The network of own_resnet.cc in PyTorch, with the same arguments: resnet.py device=cuda steps=60 ... [compile=1]"""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from training import train


def convolution(inputs, outputs, kernel, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.first = convolution(inputs, width, 1, 1)
        self.second = convolution(width, width, 3, stride)
        self.third = convolution(width, 4 * width, 1, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x):
        inner = F.relu(self.second(F.relu(self.first(x), inplace=True)), inplace=True)
        return F.relu(self.third(inner) + self.shortcut(x), inplace=True)


class Resnet(nn.Module):
    def __init__(self, blocks, width, classes):
        super().__init__()
        self.stem = convolution(3, width, 7, 2)
        body, channels = [], width
        for group, count in enumerate(blocks):
            for block in range(count):
                body.append(Bottleneck(channels, width << group, 2 if block == 0 and group > 0 else 1))
                channels = 4 * (width << group)
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        hidden = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, 1)
        return self.head(self.body(hidden).mean((2, 3)))


def main():
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    batch, size, classes = (int(words[key]) for key in ("batch", "image", "classes"))
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    blocks = [int(count) for count in words["blocks"].split(",")]
    model = Resnet(blocks, int(words["width"]), classes).to(words["device"], memory_format=torch.channels_last)
    images = torch.randn(batch, 3, size, size, device=words["device"]).contiguous(memory_format=torch.channels_last)
    targets = torch.randint(classes, (batch,), device=words["device"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, (images, targets), lambda called, x, y: F.cross_entropy(called(x), y), optimizer, int(words["steps"]),
          words.get("compile") == "1")


if __name__ == "__main__":
    main()
