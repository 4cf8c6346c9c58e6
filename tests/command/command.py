"""What the tests of the command share: a folder with text and a small recipe, and the command run in it.

The environment variable TROIKA holds the command's path.
"""

import array
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import time
import unittest

from launchers import PATIENCE_SECONDS, environment
from slow import main, slow  # noqa: F401, for the tests that import them from here

RECIPE = """
name = "small"
[model]
kind = "gpt"
layers = 1
dim = 32
heads = 2
ffn_dim = 48
vocab_size = 256
seq_len = 32
[data]
kind = "text"
paths = ["text/*.txt"]
held_out_fraction = 0.2
[train]
steps = 3
global_batch_size = 4
micro_batch_size = 2
precision = "fp32"
evaluate_every_steps = 2
[optimizer]
kind = "sgd"
lr = 0.1
warmup_steps = 0
"""
MOST_ERROR_LINES = 7  # with the first lines of a run, which list the columns of a table
# What the product writes behind a number of a duration, whichever the machine makes of it.
UNIT_OF_TIME = "(ns|us|ms|s)"
SAFETENSORS_TYPES = {"F32": "f", "F64": "d", "I64": "q"}
ENDLESS = "train.steps=100000000"


class Done:
    """A command that has ended."""

    def __init__(self, command, status, out, err, seconds):
        self.command, self.status, self.out, self.err, self.seconds = command, status, out, err, seconds
        self.error_lines = err.splitlines()

    def __str__(self):
        return f"{' '.join(map(str, self.command))}\nexit status {self.status}\n{self.out}{self.err}"


def variables_of(changes):
    """The environment of a command. A thread each, as the tests run beside others; None takes a variable away."""
    all_of_them = environment(**{"OMP_NUM_THREADS": "1", **changes})
    return {name: str(value) for name, value in all_of_them.items() if value is not None}


class Process:
    """A command under way."""

    def __init__(self, command, folder, preexec=None, **variables):
        self.command = command
        self.started = time.monotonic()
        self.popen = subprocess.Popen(command, cwd=folder, preexec_fn=preexec, text=True, errors="replace",
                                      env=variables_of(variables),
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @property
    def pid(self):
        return self.popen.pid

    def children(self):
        return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def ranks(self):
        """{rank: pid} of the ranks that the launcher has started; the guardian beside them is none."""
        found = {pid: variable_of(pid, "RANK") for pid in self.children()}
        return {int(rank): pid for pid, rank in found.items() if rank is not None}

    def wait(self, timeout=PATIENCE_SECONDS):
        try:
            out, err = self.popen.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()  # and with the launcher its ranks
            out, err = self.popen.communicate()
            raise AssertionError(f"has not ended after {timeout} s: {self.command}\n{out}{err}") from None
        return Done(self.command, self.popen.returncode, out, err, time.monotonic() - self.started)


def variable_of(pid, name):
    entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((entry.split(b"=", 1)[1].decode() for entry in entries if entry.startswith(name.encode() + b"=")), None)


def state_of(pid):
    """As in proc(5): T where it is stopped, Z where it only waits to be reaped; None where there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return None


def alive(pid):
    return state_of(pid) not in (None, "Z")


def wait_until(condition, what, timeout=PATIENCE_SECONDS):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)  # between two looks; the deadline above ends the wait


class CommandTest(unittest.TestCase):
    """Each test has a fresh folder with recipe.toml and text/*.txt, in which the command runs."""

    maxDiff = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="troika-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "recipe.toml").write_text(RECIPE)
        write_text(self.folder / "text", 12)

    @property
    def run_folder(self):
        return self.folder / "runs" / "small"

    def start(self, *arguments, folder=None, **variables):
        variables.setdefault("XDG_CACHE_HOME", self.folder / "cache")
        process = Process([os.environ["TROIKA"], *map(str, arguments)], folder or self.folder, **variables)
        self.addCleanup(end, process)
        return process

    def troika(self, *arguments, **variables):
        return self.start(*arguments, **variables).wait()

    def train(self, *sets, ranks=1, flags=(), **variables):
        """`troika train recipe.toml --ranks N` with an override for each of `sets`."""
        return self.troika(*train_arguments(sets), "--ranks", ranks, *flags, **variables)

    def start_training(self, *sets, ranks=2, steps=2, **variables):
        """A run without an end, `steps` steps later."""
        metrics = self.run_folder / "metrics.jsonl"
        before = metrics.read_text() if metrics.exists() else ""
        process = self.start(*train_arguments((ENDLESS, *sets)), "--ranks", ranks, **variables)

        def has_trained():
            try:
                text = metrics.read_text()
            except FileNotFoundError:  # the run before is being put aside
                text = before
            return text != before and text.count("\n") >= steps

        wait_until(lambda: process.popen.poll() is not None or has_trained(), "steps of training")
        if process.popen.poll() is not None:
            self.fail(str(process.wait()))
        return process

    def succeeds(self, done):
        self.assertEqual(done.status, 0, str(done))
        return done

    def fails(self, done, status, *needles):
        """One clear error: the exit status, few lines on stderr with these words, nothing half-written."""
        self.assertEqual(done.status, status, str(done))
        self.assertEqual(done.out, "", str(done))
        errors = [line for line in done.error_lines if line.startswith("troika: ")]
        self.assertEqual(len(errors), 1, str(done))
        self.assertLessEqual(len(done.error_lines), MOST_ERROR_LINES, str(done))
        for needle in needles:
            self.assertIn(needle, done.err, str(done))
        self.nothing_half_written()
        return done

    def nothing_half_written(self):
        for path in self.folder.rglob("*"):
            self.assertNotIn(".tmp", path.name)
            self.assertNotIn(path.name, ("model.safetensors", "summary.json"), path)

    def metrics(self, run=None):
        lines = ((run or self.run_folder) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self, run=None):
        return [line["loss"] for line in self.metrics(run)]


def train_arguments(sets):
    return ["train", "recipe.toml", *(word for one in sets for word in ("--set", one))]


def end(process):
    if process.popen.poll() is None:
        process.popen.kill()
    if not process.popen.stdout.closed:
        process.popen.communicate()


def write_text(folder, documents):
    """Documents of different lengths, 40 to 700 bytes, no two alike."""
    folder.mkdir()
    for i in range(documents):
        words = " ".join(f"{'abcdefgh'[(i * k) % 8] * (1 + k % 4)}{(i + 3) * k % 97}" for k in range(8 + 9 * i))
        (folder / f"document-{i}.txt").write_text(words + "\n")


def numbers_of(path):
    """{name: array} of a safetensors file."""
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    entries = json.loads(content[8:start])
    entries.pop("__metadata__", None)
    tensors = {}
    for name, one in entries.items():
        first, end = one["data_offsets"]
        tensors[name] = array.array(SAFETENSORS_TYPES[one["dtype"]], content[start + first:start + end])
    return tensors
