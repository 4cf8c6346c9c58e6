"""Runs programs under real launchers, for the launch_*.py tests beside this file."""

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

from slow import chosen

SKIPPED = 77  # the exit status that ctest takes for "skipped"
# A hang ends by it: many times what anything takes on a machine that others use, too.
PATIENCE_SECONDS = 240

# A small model that trains until something ends it.
ENDLESS_RECIPE = """
name = "endless"
[model]
kind = "mlp"
input_dim = 8
hidden_dims = [8]
output_dim = 2
activation = "relu"
loss = "cross_entropy"
[data]
kind = "random"
[train]
steps = 100000000
global_batch_size = 4
micro_batch_size = 2
evaluate_every_steps = 0
"""


def skip(why):
    print("skipped:", why)
    sys.exit(SKIPPED)


def need_root():
    if os.geteuid() != 0:
        skip("needs root")


def need_programs(*names):
    for name in names:
        if not shutil.which(name):
            skip(f"{name} is not installed")


def environment(**changes):
    """This process's, without what a launcher around the tests may have set."""
    foreign = ("SLURM", "OMPI_", "PMI", "PMIX", "MPI_", "TORCHELASTIC", "MASTER_", "TROIKA_")
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(foreign) and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**kept, **changes}


_reserved = []


def open_mpi():
    """Variables of one mpirun. Open MPI refuses to run as root, and more ranks than cores, unless told; and its jobs race
    for the folder that they share by default: one that ends removes it."""
    folder = tempfile.mkdtemp(prefix="troika-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_orte_tmpdir_base=folder)


def reserved_port():
    """A port of loopback that no other process is given until this program ends: bound, and not listened on,
    so that a server that reuses addresses can take it."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    _reserved.append(port)
    return port.getsockname()[1]


class Job:
    """A command under way."""

    def __init__(self, command, env=None):
        self.command = command
        self.process = subprocess.Popen(command, env=env or environment(), text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def wait(self, timeout=PATIENCE_SECONDS):
        try:
            self.out, self.err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"{self.command} has not ended:\n{self.out}{self.err}") from None
        self.status = self.process.returncode
        return self

    def worlds(self):
        """What the ranks of world_probe have printed, by rank."""
        assert self.status == 0, f"{self.command}: status {self.status}\n{self.out}{self.err}"
        return worlds_in(self.out)

    def sums(self):
        """What the ranks of comm_probe have printed, by rank."""
        assert self.status == 0, f"{self.command}: status {self.status}\n{self.out}{self.err}"
        return said(self.out, "comm")


def wait_for_all(jobs, timeout=PATIENCE_SECONDS):
    """Each of them has ended when this returns or throws."""
    try:
        return [job.wait(timeout) for job in jobs]
    finally:
        for job in jobs:
            if job.process.poll() is None:
                job.process.kill()
                job.process.communicate()


def said(text, word):
    """The JSON objects after `word`, by rank; a launcher may have put something in front."""
    start = word + " {"
    lines = [line[line.index(start) + len(word):] for line in text.splitlines() if start in line]
    return sorted((json.loads(line) for line in lines), key=lambda one: one["rank"])


def worlds_in(text):
    return said(text, "world")


def run(command, env=None, timeout=PATIENCE_SECONDS):
    return Job(command, env).wait(timeout)


def check_worlds(worlds, size, **expected):
    """All ranks of one job are there, once, and agree."""
    assert [world["rank"] for world in worlds] == list(range(size)), worlds
    assert len({world["pid"] for world in worlds}) == size, worlds
    for world in worlds:
        assert world["size"] == size and world["job"] == worlds[0]["job"], worlds
        for key, value in expected.items():
            assert world[key] == value, (key, value, world)


def temporary_folder():
    return tempfile.TemporaryDirectory(prefix="troika-test-")


def run_tests(tests):
    for test in filter(chosen, tests):
        print("running", test.__name__, flush=True)
        test()
