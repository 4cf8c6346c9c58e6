"""PyTorch's DataLoader over a folder of images with two workers: image_loader.py FOLDER IMAGES train|evaluate

The data set does what torchvision's ImageFolder does with its usual transforms: RandomResizedCrop and
RandomHorizontalFlip, or Resize and CenterCrop; then ToTensor and Normalize. All of them work by Pillow. Prints the
seconds of loading as JSON.
"""

import json
import math
import pathlib
import random
import sys
import time

import numpy
import torch
from PIL import Image

SIZE, RESIZED, BATCH, WORKERS = 224, 256, 64, 2
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def random_part(width, height):
    """The box of RandomResizedCrop."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2


def for_training(image):
    image = image.crop(random_part(*image.size)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def for_evaluation(image):
    ratio = RESIZED / min(image.size)
    image = image.resize(tuple(int(side * ratio) for side in image.size), Image.Resampling.BILINEAR)
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    return image.crop((left, top, left + SIZE, top + SIZE))


class Images(torch.utils.data.Dataset):
    def __init__(self, folder, transform):
        self.files = [(path, label) for label, inside in enumerate(sorted(pathlib.Path(folder).iterdir()))
                      for path in sorted(inside.iterdir())]
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        with open(path, "rb") as file:
            image = self.transform(Image.open(file).convert("RGB"))
        pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return pixels.sub_(MEAN).div_(STD), label


def main():
    folder, wanted, use = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Images(folder, {"train": for_training, "evaluate": for_evaluation}[use]),
                                         batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    seen, began = 0, time.perf_counter()
    while seen < wanted:
        for images, _ in loader:
            seen += len(images)
            if seen >= wanted:
                break
    print(json.dumps({"images": seen, "seconds": time.perf_counter() - began}))


main()
