"""Checkpoints of a module of 100 million parameters with Adam, against torch.distributed.checkpoint; and the time from a
death to the next step, against torchrun's."""

import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

from runs import Failed

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
LAYERS, WIDTH = 10, 3162  # 100 million parameters
QUICK_LAYERS = 2
SAVES, WARM = 8, 4  # the first ones are into memory that nothing has touched, on both sides
STOP_SECONDS = 30
PEER_ATTEMPTS, PEER_RESTARTS = 3, 10  # of its restarts, some find no peer
# Copies of as many bytes: a checkpoint may stall for so many, from the second on.
COPIES_GOAL = 0.5  # the inverse, as all ratios are
STALL_GOAL, SAVE_GOAL, LOAD_GOAL, RESTART_GOAL = 1, 2, 2, 4
RESTART_RECIPE = """
name = "restarted"
[model]
kind = "mlp"
input_dim = 64
hidden_dims = [256, 256]
output_dim = 10
activation = "tanh"
[data]
kind = "random"
[train]
steps = 1000000
global_batch_size = 64
micro_batch_size = 32
[checkpoint]
every_steps = 200
keep = 1
[elastic]
max_restarts = 3
"""
PATIENCE_SECONDS = 120


def saving(rows):
    bench, options = rows.bench, rows.options
    program = options.troika.parent / "tests" / "bench_checkpoint" / "checkpoint_bench"
    layers = QUICK_LAYERS if options.quick else LAYERS
    folder = bench.scratch / "checkpoints"

    def emptied():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.sync()

    def ours():
        emptied()
        out = bench.run([options.troika, "launch", "--ranks", 2, "--", program, folder, layers, WIDTH, SAVES])[0]
        return json.loads(out.splitlines()[-1])

    def theirs():
        emptied()
        return rows.torchrun(2, "dcp_checkpoint.py", folder, layers, WIDTH, SAVES)

    def later(seconds):
        return statistics.median(seconds[WARM:])

    name = f"checkpoint of {layers * WIDTH * (WIDTH + 1) / 1e6:.0f} M parameters with Adam"
    pairs = rows.alternate("checkpoint", ours, theirs)
    yield (f"{name}: stall", "troika", "DCP, async_save", 2,
           [(later(a["stall_seconds"]), later(b["stall_seconds"])) for a, b in pairs], STALL_GOAL)
    yield ("the same", "troika", "a copy of the same bytes", 2,
           [(later(a["stall_seconds"]), a["copy_seconds"]) for a, _ in pairs], COPIES_GOAL)
    yield ("the same: on disk", "troika", "DCP, save", 2,
           [(later(a["save_seconds"]), later(b["save_seconds"])) for a, b in pairs], SAVE_GOAL)
    yield ("the same: loaded", "troika", "DCP, load", 2,
           [(a["load_seconds"], b["load_seconds"]) for a, b in pairs], LOAD_GOAL)


def rank_processes(launcher):
    """The processes that a launcher has started, by rank."""
    found = {}
    try:
        children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for pid in map(int, children):
            words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [int(word[5:]) for word in words if word.startswith(b"RANK=")]
            if ranks:
                found[ranks[0]] = pid
    except (FileNotFoundError, ProcessLookupError, ValueError):  # one that has just ended
        pass
    return found


class Job:
    """A job whose launcher starts it again; `last_step` says how far it is, and may go back."""

    def __init__(self, command, folder, last_step):
        self.last_step = last_step
        self.name = " ".join(str(word) for word in command[:4])
        self.process = subprocess.Popen([str(word) for word in command], cwd=folder, start_new_session=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                status = self.process.poll()
                how = "hangs" if status is None else f"has ended with exit status {status}"
                raise Failed(f"a job that its launcher starts again {how}: {self.name}")
            time.sleep(0.002)

    def seconds_from_death(self, has_begun):
        """From the death of rank 1 to the first step of the next rank 0."""
        try:
            self.wait_for(has_begun)
            ranks = rank_processes(self.process.pid)
            os.kill(ranks[1], signal.SIGKILL)
            death = time.time()
            self.wait_for(lambda: rank_processes(self.process.pid).get(0, ranks[0]) != ranks[0])
            # It goes on from its checkpoint, which may lie before the last step of the first start.
            least = self.last_step()

            def has_stepped():
                nonlocal least
                step = self.last_step()
                least = min(least, step)
                return step > least

            self.wait_for(has_stepped)
            return time.time() - death
        finally:
            self.stop()

    def stop(self):
        """Ends its ranks, too, which are not of the launcher's process group with torchrun."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def last_number(file, read):
    """`read` of the last whole line; 0 where there is none."""
    try:
        lines = file.read_bytes()[-4096:].split(b"\n")
        return read(lines[-2]) if len(lines) > 1 else 0
    except (FileNotFoundError, ValueError):  # half a line, of a file that is being replaced
        return 0


def restarting(rows):
    options = rows.options

    def new_folder():  # processes of the run before may still write
        return pathlib.Path(tempfile.mkdtemp(prefix="restart-", dir=rows.bench.scratch))

    def ours():
        folder = new_folder()
        (folder / "recipe.toml").write_text(RESTART_RECIPE)
        run = folder / "runs" / "restarted"
        job = Job([options.troika, "train", "recipe.toml", "--ranks", 2], folder,
                  lambda: last_number(run / "metrics.jsonl", lambda line: json.loads(line)["step"]))
        return job.seconds_from_death(lambda: list(run.glob("checkpoints/step-*/manifest.json")))

    def theirs():
        """torchrun with Gloo hangs after some of the deaths: those are told, and not timed."""
        for _ in range(PEER_ATTEMPTS - 1):
            try:
                return their_restart()
            except Failed as error:
                rows.say(f"restart: {error}; it is left out")
        return their_restart()

    def their_restart():
        folder = new_folder()
        job = Job([options.peer_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
                   "--max-restarts", PEER_RESTARTS, PEERS / "restarted_mlp.py", folder, 1_000_000, 200], folder,
                  lambda: last_number(folder / "steps", lambda line: int(line.split()[1])))
        return job.seconds_from_death(lambda: (folder / "checkpoint.pt").exists())

    yield ("kill -9 of a rank to the next step", "troika", "torchrun, DDP", 2,
           rows.alternate("restart", ours, theirs), RESTART_GOAL)


def rows_of(rows):
    yield from saving(rows)
    yield from restarting(rows)
