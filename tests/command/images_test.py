"""Images: what `kind = "images"` and columns with `as = "image"` train on, as Pillow has written them.

Run with pytest, in an environment with Pillow, pyarrow, moto and safetensors.
"""

import csv
import io
import json
import shutil
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from safetensors.numpy import load_file

from bucket import VARIABLES, Bucket
from command import CommandTest

USAGE, DATA = 2, 3
CLASSES = ("ant", "bee", "cow")
# Levels of 255 by which decoders and resizers may differ: Pillow rounds between its two passes.
LEVELS_OF_PNG, LEVELS_OF_JPEG = 1.5, 6

RECIPE = """
name = "small"
[model]
kind = "resnet"
blocks = [1]
width = 4
norm = "sync_batch"
[data]
kind = "images"
path = "photos"
size = 12
held_out_fraction = 0
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]
[train]
steps = 2
global_batch_size = 12
micro_batch_size = 12
precision = "fp64"
deterministic = true
evaluate_every_steps = 0
[optimizer]
kind = "sgd"
lr = 0.05
warmup_steps = 0
[observe]
tensorboard = false
"""


def picture(seed, width=40, height=30, mode="RGB"):
    """A smooth image with some detail, as photographs have it."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def as_pillow_has_it(image, size):
    """The shorter side resized to `size`, and the middle cut out."""
    image = image.convert("RGB")
    ratio = size / min(image.size)
    width, height = (round(side * ratio) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.float64).transpose(2, 0, 1)


def file_of(image, form="PNG", **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


class ImageTest(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)
        for name in CLASSES:
            (self.folder / "photos" / name).mkdir(parents=True)

    def write(self, name, image, **options):
        image.save(self.folder / "photos" / name, **options)

    def write_photos(self, count=12, width=40, height=30):
        for i in range(count):
            self.write(f"{CLASSES[i % 3]}/{i:02}.{('png', 'jpg')[i % 2]}", picture(i, width, height))

    def batch(self, *sets, ranks=1, step=1, **variables):
        """The images and the classes of a step."""
        self.succeeds(self.train(f"debug.dump_steps=[{step}]", f"train.steps={step}", *sets, ranks=ranks, flags=("--overwrite",), **variables))
        batch = load_file(self.run_folder / "dump" / f"step-{step}" / "batch.safetensors")
        return batch["images"], batch["targets"]


class Decoding(ImageTest):
    def expect(self, images, tolerance):
        """One image a class, in files that are all there is."""
        found, targets = self.batch("train.global_batch_size=3", "train.micro_batch_size=3")
        for image, target in zip(found, targets):
            expected = as_pillow_has_it(images[int(target)], 12)
            self.assertLessEqual(np.abs(image * 255 - expected).max(), tolerance, CLASSES[int(target)])

    def test_png_as_pillow_decodes_it(self):
        images = [picture(1, mode="RGB"), picture(2, 33, 50, "P"), picture(3, 12, 12, "L")]
        for name, image in zip(CLASSES, images):
            self.write(f"{name}/a.png", image)
        self.expect(images, LEVELS_OF_PNG)

    def test_jpeg_as_pillow_decodes_it(self):
        files = [file_of(picture(1, 90, 70), "JPEG", quality=95), file_of(picture(2, 31, 50), "JPEG", progressive=True),
                 file_of(picture(3, 200, 300, "L"), "JPEG", quality=95)]
        for name, file in zip(CLASSES, files):
            (self.folder / "photos" / name / "a.jpeg").write_bytes(file)
        self.expect([Image.open(io.BytesIO(file)) for file in files], LEVELS_OF_JPEG)

    def test_the_inks_of_printing(self):
        file = file_of(picture(5, 64, 64, "CMYK"), "JPEG", quality=95)
        for name in CLASSES:
            (self.folder / "photos" / name / "a.jpg").write_bytes(file)
        self.expect([Image.open(io.BytesIO(file))] * 3, LEVELS_OF_JPEG)


class InABucket(ImageTest):
    def test_a_folder_a_class(self):
        self.write_photos()
        expected = self.batch()
        bucket = Bucket(self)
        files = sorted(path for path in (self.folder / "photos").rglob("*.*"))
        for path in [*files, "notes.txt"]:
            name = path if isinstance(path, str) else str(path.relative_to(self.folder / "photos"))
            with bucket.store.open_output_stream(f"{bucket.place}/{'ant/' if path == 'notes.txt' else ''}{name}") as stream:
                stream.write(b"text" if path == "notes.txt" else path.read_bytes())
        url = bucket.url(bucket.place)
        done = self.succeeds(self.train(f"data.path='{url}'", "train.steps=1", flags=("--overwrite",), **VARIABLES))
        self.assertIn("1 file in 's3://", done.err)
        for mine, theirs in zip(self.batch(f"data.path='{url}'", "train.micro_batch_size=6", ranks=2, **VARIABLES), expected):
            np.testing.assert_array_equal(mine, theirs)
        self.succeeds(self.troika("predict", self.run_folder, "--data", url, "--out", "out.csv", **VARIABLES))
        self.assertEqual(len((self.folder / "out.csv").read_text().splitlines()), 1 + len(files))
        shutil.rmtree(self.folder / "runs")
        self.fails(self.train(f"data.path='{bucket.url('bucket/nothing-here')}'", **VARIABLES), DATA, "there is no file in 's3://bucket/nothing-here'")


class Training(ImageTest):
    def test_one_and_two_ranks_train_alike(self):
        self.write_photos(40, 50, 45)
        augmented = ("data.crop=random_resized", "data.flip=true", "train.steps=8", "debug.dump_steps=[1, 8]")
        seen = {}
        for ranks in (1, 2):
            self.succeeds(self.train(*augmented, f"train.micro_batch_size={12 // ranks}", ranks=ranks, flags=("--overwrite",)))
            batches = [load_file(self.run_folder / "dump" / f"step-{step}" / "batch.safetensors") for step in (1, 8)]
            seen[ranks] = self.losses(), batches
        np.testing.assert_allclose(seen[1][0], seen[2][0], rtol=1e-12)
        for one, two in zip(seen[1][1], seen[2][1]):
            for name, values in one.items():
                np.testing.assert_array_equal(values, two[name])

    def test_the_model_takes_what_the_images_are(self):
        self.write_photos(12, 16, 16)
        self.batch("data.size=0", "data.color=gray", "data.mean=[]", "data.std=[]")
        recipe = (self.run_folder / "recipe.toml").read_text()
        for line in ("classes = 3\n", "channels = 1\n", "image_size = 16\n"):
            self.assertIn(line, recipe)
        described = json.loads((self.run_folder / "data.json").read_text())
        self.assertEqual(described["classes"], list(CLASSES))
        self.assertEqual(len(described["mean"]), 1)

    def test_evaluation_and_predictions(self):
        self.write_photos(36)
        out = self.succeeds(self.train("data.held_out_fraction=0.4", "train.evaluate_every_steps=2", "train.metrics=['accuracy']"))
        self.assertIn("images,", out.err)
        figures = json.loads(self.succeeds(self.troika("evaluate", "runs/small", "--json")).out)
        self.assertAlmostEqual(figures["loss"], self.metrics()[-1]["held_out_loss"], delta=1e-9)
        self.succeeds(self.troika("predict", "runs/small", "--out", "out.csv"))
        self.assertGreater(len((self.folder / "out.csv").read_text().splitlines()), 5)

    def test_predictions_of_other_folders(self):
        """By the means of training, under the names of files and classes; judged by the loss of the classes that they have."""
        self.write_photos(24)
        self.succeeds(self.train("data.mean=[]", "data.std=[]"))
        for i in range(9):
            for folder in (f"other/{CLASSES[i % 3]}", "mixed/deep"):
                (self.folder / folder).mkdir(parents=True, exist_ok=True)
                picture(100 + i).save(self.folder / folder / f"{i}.png")
        predicted = {}
        for data in ("other", "mixed"):
            self.succeeds(self.troika("predict", "runs/small", "--data", data, "--out", "out.csv"))
            predicted[data] = list(csv.DictReader((self.folder / "out.csv").open()))
        rows = predicted["other"]
        self.assertEqual(list(rows[0]), ["image", "class", *(f"probability_{name}" for name in CLASSES)])
        self.assertEqual([row["image"] for row in rows], sorted(f"{CLASSES[i % 3]}/{i}.png" for i in range(9)))
        by_file = {row["image"].split("/")[1]: row for row in predicted["mixed"]}
        loss = 0
        for row in rows:
            name, file = row["image"].split("/")
            self.assertEqual({**by_file[file], "image": row["image"]}, row)
            self.assertEqual(row["class"], max(CLASSES, key=lambda each: float(row[f"probability_{each}"])))
            loss -= np.log(float(row[f"probability_{name}"])) / len(rows)
        found = json.loads(self.succeeds(self.troika("evaluate", "runs/small", "--data", "other", "--json")).out)
        self.assertAlmostEqual(found["loss"], loss, delta=1e-9)
        self.succeeds(self.troika("predict", "runs/small", "--data", "other/bee/1.png", "--out", "out.parquet"))
        one = pq.read_table(self.folder / "out.parquet").to_pylist()
        self.assertEqual([(row["image"], row["class"]) for row in one], [("1.png", by_file["1.png"]["class"])])
        self.succeeds(self.troika("predict", "runs/small", "--data", "mixed", "--out", "out.safetensors"))
        tensors = load_file(self.folder / "out.safetensors")
        self.assertEqual((list(tensors["image"]), tensors["probability"].shape), (list(range(9)), (9, 3)))

    def test_predictions_of_what_is_none(self):
        self.write_photos(12)
        self.succeeds(self.train())
        (self.folder / "empty").mkdir()
        (self.folder / "bad").mkdir()
        (self.folder / "bad/a.png").write_bytes(b"no image")
        run, out = "runs/small", ("--out", "out.csv")
        for status, message, *words in ((DATA, "cannot list the folder 'nowhere'", "nowhere"), (DATA, "there is no image in 'empty", "empty"),
                                        (DATA, "the image 'bad/a.png' is no JPEG or PNG image", "bad"),
                                        (USAGE, "--data names 2 folders", "empty", "--data", "bad")):
            done = self.troika("predict", run, "--data", *words, *out)
            self.assertEqual(done.status, status, str(done))
            self.assertIn(message, done.err)
            self.assertFalse((self.folder / "out.csv").exists())
        (self.folder / "strange/gnu").mkdir(parents=True)
        done = self.troika("evaluate", run, "--data", "strange")
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("'strange/gnu' is the folder of no class", done.err)

    def test_classes_come_equally_often_on_any_number_of_ranks(self):
        for i in range(15):
            self.write(f"ant/{i}.png", picture(i))
        for name in CLASSES[1:]:
            self.write(f"{name}/0.png", picture(20))
        first = self.batch("data.balance_classes=true", step=2)
        self.assertEqual(sorted(first[1]), [0] * 4 + [1] * 4 + [2] * 4)
        for ranks in (2, 4):
            for one, other in zip(first, self.batch("data.balance_classes=true", "train.micro_batch_size=3", ranks=ranks, step=2)):
                np.testing.assert_array_equal(one, other)

    def test_other_sizes_and_models_are_refused(self):
        self.write_photos()
        self.fails(self.train("model.channels=1"), USAGE, "color = \"rgb\" gives 3 channels, and the model takes 1")
        self.fails(self.train("model.image_size=8"), USAGE, "size = 12, and the model takes images of 8 x 8")
        self.fails(self.train("model.classes=2"), DATA, "has 3 classes; the model has 2")
        self.fails(self.train("data.resize_to=5"), USAGE, "resize_to")
        self.fails(self.train("data.path=nowhere"), DATA, "cannot list the folder 'nowhere'")


class BadImages(ImageTest):
    def setUp(self):
        super().setUp()
        self.write_photos(24)
        self.bad = self.folder / "photos/bee/bad.jpg"

    def test_they_are_named(self):
        whole = file_of(picture(1), "JPEG")
        for name, content, reason in (("a", b"", "is empty"), ("b", b"GIF89a", "is no JPEG or PNG image"),
                                      ("c", whole[:-40], "is a damaged JPEG image: Premature end of JPEG file")):
            with self.subTest(reason):
                self.bad.write_bytes(content)
                done = self.train(f"name={name}", "train.global_batch_size=25", "train.micro_batch_size=25")
                self.fails(done, DATA, f"'photos/bee/bad.jpg' {reason}", "on_bad_image")

    def test_they_are_left_out_and_counted(self):
        for name in ("photos/ant/a.png", "photos/bee/bad.jpg"):
            (self.folder / name).write_bytes(file_of(picture(1), "JPEG")[:300])
        done = self.succeeds(self.train("data.on_bad_image=skip", "train.steps=5"))
        self.assertIn("2 bad images left out, the first is 'photos/ant/a.png', which is a damaged JPEG image", done.err)

    def test_a_header_that_promises_gigabytes(self):
        content = bytearray(file_of(picture(1), "JPEG"))
        frame = content.index(b"\xff\xc0")
        content[frame + 5:frame + 9] = b"\xf0\xf0\xf0\xf0"
        self.bad.write_bytes(content)
        self.fails(self.train("train.steps=3"), DATA, "has 61680 x 61680 pixels; at most 67108864 are decoded")


STORED = pa.struct({"bytes": pa.binary(), "path": pa.string()})


class Columns(ImageTest):
    """The same images as a folder and as a column of a table."""

    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE.split("[data]")[0] + """[data]
kind = "table"
files = ["photos.parquet"]
held_out_fraction = 0
[data.columns]
photo = { as = "image", size = 12, mean = [0.0, 0.0, 0.0], std = [1.0, 1.0, 1.0] }
label = { as = "label" }
[train]""" + RECIPE.split("[train]")[1])
        self.files = [file_of(picture(i), ("PNG", "JPEG")[i % 2]) for i in range(12)]
        self.names = []
        for i, file in enumerate(self.files):
            self.names.append(f"photos/{CLASSES[i % 3]}/{i}")
            (self.folder / self.names[-1]).write_bytes(file)

    def table(self, photos, **options):
        labels = [CLASSES[i % 3] for i in range(len(self.files))]
        pq.write_table(pa.table({"photo": photos, "label": labels}), self.folder / "photos.parquet", row_group_size=5, **options)

    def sorted_batch(self, *sets, **variables):
        images, targets = self.batch(*sets, **variables)
        rows = np.concatenate([images.reshape(len(images), -1), targets[:, None]], axis=1)
        return rows[np.lexsort(rows.T)]

    def test_bytes_structs_and_paths_are_the_same(self):
        seen = []
        for photos in (pa.array(self.files), pa.array(self.names),
                       pa.array([{"bytes": file, "path": None} for file in self.files], STORED),
                       pa.array([{"bytes": None if i % 3 else file, "path": name}
                                 for i, (file, name) in enumerate(zip(self.files, self.names))], STORED),
                       pa.array([{"bytes": None, "path": name} for name in self.names])):
            self.table(photos)
            seen.append(self.sorted_batch())
        for rows, file in zip(seen, seen[1:]):
            np.testing.assert_array_equal(rows, file)
        expected = np.stack([np.append(as_pillow_has_it(Image.open(io.BytesIO(file)), 12), i % 3)
                             for i, file in enumerate(self.files)])
        for row in seen[0]:
            own = expected[expected[:, -1] == row[-1]]
            self.assertLess(np.abs(own[:, :-1] - row[:-1] * 255).max(axis=1).min(), LEVELS_OF_JPEG)

    def test_paths_below_another_folder(self):
        self.table(pa.array([name.removeprefix("photos/") for name in self.names]))
        self.fails(self.train(), DATA, "cannot read '", "No such file")
        recipe = (self.folder / "recipe.toml").read_text()
        (self.folder / "recipe.toml").write_text(recipe.replace('as = "image"', 'as = "image", root = "photos"'))
        self.batch()

    def test_names_without_their_ending(self):
        """Of digits too: in CSV their zeros stay."""
        ids = [f"{i:03}" for i in range(len(self.files))]
        for name, file in zip(ids, self.files):
            (self.folder / f"photos/{name}.jpg").write_bytes(file)
            (self.folder / f"photos/{int(name)}.jpg").write_bytes(file)
        recipe = (self.folder / "recipe.toml").read_text()
        (self.folder / "recipe.toml").write_text(recipe.replace('as = "image"', 'as = "image", root = "photos", suffix = ".jpg"'))
        self.table(pa.array(ids))
        expected = self.sorted_batch()
        self.table(pa.array(range(len(ids))))
        np.testing.assert_array_equal(self.sorted_batch(), expected)
        lines = "".join(f"{name},{CLASSES[i % 3]}\n" for i, name in enumerate(ids))
        (self.folder / "photos.csv").write_text("photo,label\n" + lines)
        np.testing.assert_array_equal(self.sorted_batch("data.files=['photos.csv']"), expected)

    def test_paths_in_a_bucket(self):
        """They start at the folder of the table, at a root, or are whole URLs."""
        self.table(pa.array(self.names))
        expected = self.sorted_batch()
        bucket = Bucket(self)
        for name, file in zip(self.names, self.files):
            with bucket.store.open_output_stream(f"{bucket.place}/{name}") as stream:
                stream.write(file)
        labels = [CLASSES[i % 3] for i in range(len(self.files))]
        recipe = (self.folder / "recipe.toml").read_text()
        whole = [f"s3://{bucket.place}/{name}" for name in self.names]
        for names, root in ((self.names, ""), (whole, ""), ([name.removeprefix("photos/") for name in self.names], f"s3://{bucket.place}/photos")):
            pq.write_table(pa.table({"photo": names, "label": labels}), f"{bucket.place}/photos.parquet", filesystem=bucket.store)
            (self.folder / "recipe.toml").write_text(recipe.replace('as = "image"', f'as = "image", root = "{root}"') if root else recipe)
            found = self.sorted_batch(f"data.files=['{bucket.url(bucket.place + '/photos.parquet')}']", **VARIABLES)
            np.testing.assert_array_equal(found, expected)

    def test_the_same_numbers_on_two_ranks_with_random_crops(self):
        self.table(pa.array(self.files))
        recipe = (self.folder / "recipe.toml").read_text()
        (self.folder / "recipe.toml").write_text(recipe.replace(
            'as = "image"', 'as = "image", crop = "random_resized", flip = true').replace(", mean = [0.0, 0.0, 0.0], std = [1.0, 1.0, 1.0]", ""))
        one = self.batch(step=3)
        two = self.batch("train.micro_batch_size=6", ranks=2, step=3)
        for mine, theirs in zip(one, two):
            np.testing.assert_array_equal(mine, theirs)
        column = json.loads((self.run_folder / "data.json").read_text())["columns"][0]
        self.assertEqual(len(column["image"]["mean"]), 3)

    def test_a_bad_image_names_its_row(self):
        self.files[7] = self.files[7][:100]
        self.table(pa.array(self.files))
        self.fails(self.train(), DATA, "photos.parquet', row group 1, row 2: the column 'photo' is a damaged JPEG image")
        done = self.succeeds(self.train("data.on_bad_row=skip"))
        self.assertIn("1 bad row left out, the first at 'photos.parquet', row group 1, row 2", done.err)

    def test_what_is_refused(self):
        self.table(pa.array(self.files))
        self.fails(self.train("model.kind=mlp", "model.hidden_dims=[4]"), USAGE)
        recipe = (self.folder / "recipe.toml").read_text()
        (self.folder / "recipe.toml").write_text(recipe.replace('as = "label"', 'as = "label", flip = true'))
        self.fails(self.train(), USAGE, "are for images, not for as = \"label\"")


if __name__ == "__main__":
    unittest.main()
