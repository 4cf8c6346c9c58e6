"""JPEG images for training, against PyTorch's DataLoader with Pillow, which is what torchvision decodes and resizes by.

Both have two cores: ours two threads that decode, the peer two workers. Ours is the loader of a run without a model
(tests/command/table_tool.cc).
"""

import json
import pathlib

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "image_loader.py"
IMAGES = 1000
GOAL = 1.5

RECIPE = """
name = "images"
[model]
kind = "resnet"
blocks = [1]
[data]
kind = "images"
path = "{folder}"
size = 224
workers = 2
held_out_fraction = 0
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
{keys}
[train]
global_batch_size = 64
micro_batch_size = 64
"""
# As photographs of ImageNet are: 500 x 375 pixels in some 80 KB, with detail on every scale.
WRITE = """
import pathlib, sys, numpy
from PIL import Image
folder, images = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for i in range(images):
    random = numpy.random.default_rng(i)
    sides = 375, 500
    pixels = numpy.full((*sides, 3), 128.0)
    for scale in (1, 2, 4, 8, 16, 32, 64):
        noise = random.normal(size=(-(-sides[0] // scale), -(-sides[1] // scale), 3))
        strength = 7 * scale ** 0.45
        layer = [Image.fromarray(noise[..., c]).resize(sides[::-1], Image.Resampling.BICUBIC) for c in range(3)]
        pixels += strength * numpy.stack(layer, axis=2)
    path = folder / f"{i % 10}" / f"{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(path, quality=90)
"""
# What torchvision's examples train and evaluate on.
USES = {"train": 'crop = "random_resized"\nflip = true', "evaluate": "resize_to = 256"}


def loading(rows):
    """What `rows.row` takes, for each use; `rows` is a Rows. Times are those of a thousand images."""
    bench, options = rows.bench, rows.options
    folder = bench.scratch / "images"
    tool = options.troika.parent / "tests" / "command" / "table_tool"
    bench.run([options.peer_python, "-c", WRITE, folder, IMAGES])
    wanted = IMAGES if options.quick else 4 * IMAGES
    for use, keys in USES.items():
        recipe = bench.scratch / f"images-{use}.toml"
        recipe.write_text(RECIPE.format(folder=folder, keys=keys))

        def ours():
            found = json.loads(bench.run([tool, recipe, wanted])[0])
            return found["load_seconds"] / found["samples"] * IMAGES

        def theirs():
            found = json.loads(bench.run([options.peer_python, PEER, folder, wanted, use])[0])
            return found["seconds"] / found["images"] * IMAGES

        pairs = rows.alternate(f"images, {use}", ours, theirs)
        yield f"a thousand JPEG images, {use}", "troika", "DataLoader, Pillow", 1, pairs, GOAL if use == "train" else None
