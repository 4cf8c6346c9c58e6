"""Programs in Fortran, compiled with the compiler's checks, under a real mpirun: fortran_test.py BUILD_FOLDER

fortran/calls.f90 makes right and wrong calls and writes what each returned. Here stands what has to be there: the status,
the line and the value. Weights that it has saved are judged in plain Python.
"""

import json
import math
import pathlib
import re
import shutil
import struct
import sys
import tempfile
import unittest

from example_runs import ROOT, run_in
from mpi_programs import mpis
from slow import main, slow

BUILD = pathlib.Path(sys.argv[1])
SOURCES = [*(ROOT / "troika" / f"{name}.f90" for name in ("troika_c", "troika_arrays", "troika")),
           ROOT / "tests" / "command" / "fortran" / "calls.f90"]
FLAGS = ["-g", "-fcheck=all", "-Wall", "-Wextra", "-ffpe-trap=invalid,zero,overflow"]
POINTS = 64
UNTOUCHED = -9

POINTS_RECIPE = """
seed = 7
[model]
kind = "mlp"
input_dim = 3
hidden_dims = [8]
output_dim = 1
activation = "tanh"
loss = "mean_square"
[train]
precision = "fp64"
device = "cpu"
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 0
"""
IMAGES_RECIPE = """
[model]
kind = "resnet"
classes = 3
channels = 2
image_size = 8
blocks = [1]
width = 2
stem = "32x32"
[train]
precision = "fp64"
device = "cpu"
"""

SECTION = "give a whole array, or a section whose numbers lie side by side"
COLUMN = "a sample is a column: the samples come last"
# Cases that leave the caller's variables as they are: the line, and the hint.
REFUSED = {
    "engine": ("no engine is called 'tcp'", None),
    "time-out": ("a time-out is negative, or no number", None),
    "rendezvous time-out": ("a time-out is negative, or no number", None),
    "threads": ("a negative number of threads: -2", None),
    "session never opened": ("session is NULL", None),
    "model never made": ("model is NULL", None),
    "assumed size without samples": ("input 'features' is of assumed size", "say how many samples there are"),
    "predict into 2": ("output 'outputs' has 2 values for 64 samples", "one sample has 1 value: the array is (1, 64)"),
    "predict into 65": ("output 'outputs' has 33 values for 32 samples", "one sample has 1 value: the array is (1, 32)"),
    "predict in real32": ("output 'outputs' has 2 values for 64 samples", "one sample has 1 value: the array is (1, 64)"),
    "128 samples": ("input 'features' has 192 values for 128 samples", "one sample has 3 values: the array is (3, 128)"),
    "step of 128 samples": ("input 'features' has 192 values for 128 samples", "one sample has 3 values: the array is (3, 128)"),
    "targets of 63": ("target 'targets' has 63 values for 64 samples", "one sample has 1 value: the array is (1, 64)"),
    "numbers of no sample": ("input 'features' has 1 value for 0 samples", "one sample has 3 values: the array is (3, 0)"),
    "negative": ("a negative number of samples: -1", None),
    "named": ("input 'features' has 192 values for 32 samples", "one sample has 3 values: the array is (3, 32)"),
    "no such name": ("the model has no input 'feature'", None),
    "turned": ("input 'features' is (64, 3), not (3, 64)", COLUMN),
    "turned by name": ("input 'features' is (64, 3), not (3, 64)", COLUMN),
    "two samples a column": ("input 'features' is (6, 32), not (3, 64)", COLUMN),
    "turned without samples": ("input 'features' is (64, 3), not (3, 64)", COLUMN),
    "section by name": ("input 'features' is not contiguous", SECTION),
    "rows by name": ("target 'targets' is not contiguous", SECTION),
    "outputs by name": ("output 'outputs' is not contiguous", SECTION),
    "channels first": ("input 'images' is (2, 8, 8, 4), not (8, 8, 2, 4)", COLUMN),
    "samples first": ("input 'images' is (4, 8, 8, 2), not (8, 8, 2, 4)", COLUMN),
    "images too few": ("input 'images' has 384 values for 4 samples", "one sample has 128 values: the array is (8, 8, 2, 4)"),
    "classes that are none": ("target 'targets': sample 2 has 3, not a whole number from 0 to 2", None),
    "no component": ("component is less than 1", "components are counted from 1, in the order of the array; without one it is the sum of all"),
    "slopes too few": ("gradient of input 'features' has 2 values for 64 samples", "one sample has 3 values: the array is (3, 64)"),
    # What the last rank alone has wrong.
    "one rank turned": ("input 'features' is (64, 3), not (3, 64)", COLUMN),
    "one rank of 63": ("target 'targets' has 63 values for 64 samples", "one sample has 1 value: the array is (1, 64)"),
    "one rank strided": ("input 'features' is not contiguous", SECTION),
    "one rank without a target": ("target 'targets' is missing", None),
}
# Of loss() with the same samples, before a step and after two.
BEFORE = ("loss", "loss without samples", "loss of a list", "loss of a grid", "loss of a grid without samples",
          "loss by name", "loss of assumed size", "mean square", "step")
AFTER = ("loss after", "column by name", "section", "loss since", "loss with the state")


def features(point):
    return [math.sin(point), math.cos(point), 0.01 * point]


def mean_square(path, points):
    """The loss of the saved network."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    values = {name: struct.unpack_from(f"<{math.prod(entry['shape'])}d", data, 8 + length + entry["data_offsets"][0])
              for name, entry in header.items() if name != "__metadata__"}
    weights, biases = ([values[name] for name in sorted(values) if name.endswith(end)] for end in ("weight", "bias"))
    total = 0
    for point in points:
        x = features(point)
        hidden = [math.tanh(b + sum(w * v for w, v in zip(weights[0][3 * i:3 * i + 3], x))) for i, b in enumerate(biases[0])]
        total += (biases[1][0] + sum(w * v for w, v in zip(weights[1], hidden)) - x[0] * x[1]) ** 2
    return total / len(points)


class Fortran(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="troika-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)

    def test_calls_under_mpirun(self):
        self.check_calls(mpis(BUILD)[:1])

    @slow
    def test_calls_under_another_mpirun(self):
        self.check_calls(mpis(BUILD)[1:])

    def check_calls(self, chosen):
        chosen = [mpi for mpi in chosen if shutil.which(mpi["mpifort"])]
        if not chosen:
            self.skipTest("there is no MPI, or no other, with a compiler of Fortran")
        for mpi in chosen:
            program = self.compiled(mpi["mpifort"])
            for ranks in (1, 2, 3):
                with self.subTest(mpirun=mpi["mpirun"], ranks=ranks):
                    self.check_run(mpi["mpirun"], program, ranks)

    def compiled(self, mpifort):
        """With the checks of the compiler, which has nothing to say."""
        build = self.folder / mpifort
        build.mkdir()
        done = run_in(build, mpifort, *FLAGS, *SOURCES, "-o", "calls", f"-L{BUILD}", "-ltroika", f"-Wl,-rpath,{BUILD}",
                      "-Wl,--allow-shlib-undefined")
        self.assertEqual(done.stdout + done.stderr, "")
        return build / "calls"

    def check_run(self, mpirun, program, ranks):
        folder = self.folder / f"{mpirun}-{ranks}"
        folder.mkdir()
        (folder / "points.toml").write_text(POINTS_RECIPE)
        (folder / "images.toml").write_text(IMAGES_RECIPE)
        done = run_in(folder, mpirun, "-n", ranks, program, folder)
        # Where the caller gives a section to an array that has to be contiguous, the compiler's checks name the caller.
        for place in re.findall(r"At line \d+ of file (\S+)", done.stderr):
            self.assertEqual(place, str(SOURCES[-1]))
        self.assertNotIn("rror", done.stderr)
        if ranks > 1:  # a rank alone has no operations to record
            self.assertEqual(len(list((folder / "recorders").iterdir())), ranks)
        for rank in range(ranks):
            with self.subTest(rank=rank):
                self.check_rank(folder, rank, ranks)

    def check_rank(self, folder, rank, ranks):
        lines = [line.split("|") for line in (folder / f"rank-{rank}").read_text().splitlines()]
        found = {title: (int(status), value and float(value), error, hint) for title, status, value, error, hint in lines}
        for title, (error, hint) in REFUSED.items():
            if title.startswith("one rank") and ranks > 1:
                error += f", on rank {ranks - 1}"
            self.assertEqual(found[title][:3], (2, found[title][1] and UNTOUCHED, error), title)
            self.assertEqual(found[title][3], found[title][3] if hint is None else hint, title)
        for title, (status, _, error, _) in found.items():
            if title not in REFUSED and title not in ("late", "outputs too many", "no such reduction", "load no state", "not a number, by name"):
                self.assertEqual((status, error), (0, ""), title)
        self.check_values({title: value for title, (_, value, _, _) in found.items()}, folder, rank, ranks)
        self.assertEqual((found["outputs too many"][0], found["outputs too many"][2]), (2, "output 'outputs' has 192 values for 64 samples"))
        self.assertEqual(found["not a number, by name"][0], 6)
        self.assertRegex(found["not a number, by name"][2], r"^the loss is not finite on ranks? 0.* at step 3 of model 2 'again'$")
        self.assertEqual(found["load no state"][0], 3)
        self.assertIn("points.safetensors' holds no state of training", found["load no state"][2])
        self.assertEqual(found["count the steps"][1], 2)
        self.assertEqual(found["no such reduction"][:2], (2, 2 * sum(range(1, ranks + 1))))
        self.assertIn("reduction 4 is none of", found["no such reduction"][2])
        if ranks > 1:
            self.assertEqual(found["late"][:2], (4, UNTOUCHED))
            self.assertIn("all_reduce 'exchange'", found["late"][2])
            self.assertIn("has waited 1.0 s", found["late"][2])

    def check_values(self, found, folder, rank, ranks):
        for title in BEFORE:
            self.assertAlmostEqual(found[title], found["loss"], delta=1e-15, msg=title)
        for title in AFTER:
            self.assertEqual(found[title], found["loss after"], title)
        self.assertAlmostEqual(found["loss in real32"], found["loss"], delta=1e-7)
        self.assertNotAlmostEqual(found["loss in real32"], found["loss"], delta=1e-12)
        points = range(1, ranks * POINTS + 1)
        saved = folder / "points.safetensors"
        self.assertAlmostEqual(found["loss after"], mean_square(saved, points), delta=1e-14)
        own = points[rank * POINTS:(rank + 1) * POINTS]
        self.assertAlmostEqual(found["mean square again"], mean_square(saved, own), delta=1e-14)
        self.assertEqual((found["steps"], found["steps since"]), (2, 2))
        self.assertAlmostEqual(found["slope"], 0, delta=1e-8)
        self.assertEqual(found["outputs of a section"], UNTOUCHED)
        self.assertEqual(found["images"], found["images of a column"])
        self.assertEqual(found["images"], found["images in parts"])
        self.assertEqual(found["floating point"], 3)
        first_to_last = sum(range(1, ranks + 1))
        self.assertEqual({title: found[title] for title in (
            "sum of int32", "largest int32", "smallest int64", "sum of int64", "broadcast of int32", "broadcast of int64",
            "broadcast of real32", "sum of a section")}, {
                "sum of int32": 4 * first_to_last, "largest int32": ranks - 1, "smallest int64": 1,
                "sum of int64": 3 * (first_to_last - ranks), "broadcast of int32": 2 * (ranks + 6), "broadcast of int64": 5,
                "broadcast of real32": 0, "sum of a section": 2 * first_to_last})


if __name__ == "__main__":
    main(argv=sys.argv[:1])
