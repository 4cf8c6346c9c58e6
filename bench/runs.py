"""What all works of bench.py share: commands under a deadline, what a run has measured, tables."""

import dataclasses
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys

GRADIENT_TOLERANCE = 1e-4  # fp32, of each gradient's largest element
LOSS_TOLERANCE = 2e-5  # fp32, of the loss; an update changes more
RUN_SECONDS = 900  # one run of either side; past it something hangs


class Failed(Exception):
    pass


@dataclasses.dataclass
class Measured:
    """One run of one side. Rates are in the work's unit."""

    step_rate: float  # by the median step, the first third of the steps left out
    loop_rate: float  # by the clock around all steps
    targets_per_step: int
    facts: dict


def measured(unit, step_seconds, loop_seconds, targets_per_step, facts):
    per_step = 1 if unit == "steps/s" else targets_per_step
    median = statistics.median(step_seconds[len(step_seconds) // 3 :])
    return Measured(per_step / median, per_step * len(step_seconds) / loop_seconds, targets_per_step, facts)


def summarised(pairs, peer):
    """Medians over the pairs; ratios are taken within a pair. `peer` is its key."""
    result = {}
    for rate in ("step_rate", "loop_rate"):
        ours = [getattr(one, rate) for one, _ in pairs]
        theirs = [getattr(other, rate) for _, other in pairs]
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        result[rate] = {"troika": statistics.median(ours), peer: statistics.median(theirs),
                        "ratio": statistics.median(ratios), "smallest_ratio": ratios[0], "largest_ratio": ratios[-1]}
    return result


def parameters_in(path):
    """Elements of all tensors of a safetensors file: 8 bytes of length, then a JSON header."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        elements = 1
        for extent in tensor["shape"] if name != "__metadata__" else [0]:
            elements *= extent
        total += elements
    return total


def same_work(name, parameters, found):
    """`found` is what a peer has said of troika's dump of a step."""
    if found["parameters"] != parameters:
        raise Failed(f"{name}: troika has {parameters} parameters, the peer {found['parameters']}")
    if not found["largest_gradient_error"] <= GRADIENT_TOLERANCE:
        raise Failed(f"{name}: the gradients differ by {found['largest_gradient_error']:.2e} of the largest "
                     f"element, more than {GRADIENT_TOLERANCE:.0e}: this is not the same work")


def same_losses(name, losses, theirs):
    """Of the same steps from the same parameters on."""
    for step, (own, other) in enumerate(zip(losses, theirs, strict=True), 1):
        if not abs(own - other) <= LOSS_TOLERANCE * abs(own):
            raise Failed(f"{name}: the loss of step {step} is {own:.6f}, the peer's {other:.6f}: this is not the same "
                         "work")


class Runner:
    def __init__(self, scratch):
        self.scratch = scratch
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(scratch / "pyc")}
        # Starting Python is not timed, but waited for: its modules are compiled once.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(self, command):
        return subprocess.Popen([str(word) for word in command], cwd=self.scratch, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                start_new_session=True)

    def run(self, command):
        """Its standard output and error."""
        return self.run_together([command])[0]

    def run_together(self, commands):
        """Commands that need one another, and print little; the output and error of each."""
        processes = []
        try:
            for command in commands:
                processes.append(self.start(command))
            return [finished(process) for process in processes]
        except BaseException:
            for process in processes:
                end(process)
            raise


def finished(process):
    try:
        out, err = process.communicate(timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed(f"has not ended after {RUN_SECONDS} s: {shlex.join(process.args)}") from None
    if process.returncode:
        raise Failed(f"exit status {process.returncode} of {shlex.join(process.args)}\n{err[-2000:]}")
    return out, err


def end(process):
    """With the ranks that it has started."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def say(text):
    print(f"-- {text}", file=sys.stderr, flush=True)


def laid_out(lines):
    lines.insert(1, ["---"] * len(lines[0]))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)
