#!/usr/bin/env python3
"""Times troika against PyTorch, eager and compiled, on one GPU: GPT-2 124M and an own ResNet-50, both in bf16.

All sides run in turn, and medians count. docs/benchmark-method.md says what is timed. On a machine without a GPU it
ends with exit status 2. `--device cpu --tiny` runs all of it at toy sizes, to see that it works.
"""

import argparse
import ctypes
import dataclasses
import json
import pathlib
import shlex
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from runs import Failed, Runner, laid_out, parameters_in, same_work, say  # noqa: E402

NO_GPU = 2  # the exit status
TROIKA, EAGER, COMPILED = "troika", "PyTorch eager", "torch.compile"
TWO_RANKS, ONE_RANK = "troika, two ranks", "troika, one rank"


@dataclasses.dataclass
class Sizes:
    recipe: str
    samples: int  # of a step of the recipe, and tokens of a sample
    tokens: int
    layers_x_dim: int
    resnet: dict
    product: int  # the extent of the matrices whose product MFU is measured against
    steps: int


FULL = Sizes("gpt2-124m", 16, 1024, 12 * 768,
             {"blocks": "3,4,6,3", "width": 64, "classes": 1000, "image": 224, "batch": 128}, 8192, 60)
TINY = Sizes("gpt2-tiny", 4, 16, 2 * 32, {"blocks": "1,1", "width": 4, "classes": 5, "image": 32, "batch": 4}, 128, 6)


def why_no_gpu():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "NVIDIA's driver (libcuda.so.1) is not installed"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "NVIDIA's driver shows none; `nvidia-smi` lists them"
    return None


class GpuBench(Runner):
    """One side of a work is a function without arguments, from which a run's figures come."""

    def __init__(self, options, scratch):
        super().__init__(scratch)
        self.options, self.sizes = options, TINY if options.tiny else FULL
        self.steps = options.steps or self.sizes.steps
        self.recipe = HERE / "recipes" / f"{self.sizes.recipe}.toml"

    def train(self, *sets, ranks=1, device=None, steps=None):
        """The run's folder."""
        sets = (f"runs_dir={self.scratch}", f"train.steps={steps or self.steps}",
                f"train.device={device or self.options.device}", *sets)
        self.run([self.options.troika, "train", self.recipe, "--ranks", ranks, "--json", "--overwrite",
                  *(word for one in sets for word in ("--set", one))])
        return self.scratch / f"bench-{self.sizes.recipe}"

    def troika_gpt2(self, *sets, **places):
        run = self.train(*sets, **places)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {"step_seconds": [line["step_seconds"] for line in lines], "loss": lines[-1]["loss"],
                "parameters": parameters_in(run / "model.safetensors")}

    def two_ranks(self):
        shared = "cuda:0" if self.options.device == "cuda" else self.options.device
        return self.troika_gpt2(f"train.micro_batch_size={self.sizes.samples // 2}", ranks=2, device=shared)

    def peer(self, script, *words):
        return json.loads(self.run([self.options.peer_python, HERE / "peers" / script, *words])[0].splitlines()[-1])

    def peer_gpt2(self, *words):
        return self.peer("gpt2.py", self.recipe, "--device", self.options.device, "--steps", self.steps, *words)

    def resnet_words(self, **more):
        words = {"device": self.options.device, "steps": self.steps, **self.sizes.resnet, **more}
        return [f"{key}={value}" for key, value in words.items()]

    def own_resnet(self):
        return json.loads(self.run([self.options.own_resnet, *self.resnet_words()])[0])

    def compare_gradients(self):
        """Of one step in fp32, before anything is timed."""
        run = self.train("train.precision=fp32", "train.global_batch_size=2", "train.micro_batch_size=2",
                         "debug.dump_steps=[1]", steps=1)
        dump = run / "dump" / "step-1"
        found = self.peer("gpt2.py", self.recipe, "--device", self.options.device, "--check", dump)
        same_work(self.sizes.recipe, parameters_in(dump / "parameters.safetensors"), found)

    def sides(self, work):
        compiled = not self.options.no_compile
        if work == "gpt2":
            self.compare_gradients()
            sides = {TROIKA: self.troika_gpt2, EAGER: self.peer_gpt2}
            return sides | ({COMPILED: lambda: self.peer_gpt2("--compile")} if compiled else {})
        if work == "resnet50":
            sides = {TROIKA: self.own_resnet, EAGER: lambda: self.peer("resnet.py", *self.resnet_words())}
            compile_it = lambda: self.peer("resnet.py", *self.resnet_words(compile=1))  # noqa: E731
            return sides | ({COMPILED: compile_it} if compiled else {})
        return {TWO_RANKS: self.two_ranks, ONE_RANK: self.troika_gpt2}

    def measure(self, work):
        """Rates of each side, by alternation. What kernels and caches take at first is in the first third of a run."""
        units = {"gpt2": self.sizes.samples * self.sizes.tokens, "resnet50": self.sizes.resnet["batch"]}
        per_step = units.get(work, units["gpt2"])
        sides = self.sides(work)
        rates, parameters = {side: [] for side in sides}, set()
        for number in range(1, self.options.pairs + 1):
            for side, run in sides.items():
                found = run()
                parameters.add(found["parameters"])
                rates[side].append(per_step / median_step(found["step_seconds"]))
            say(f"{work}, {number} of {self.options.pairs}: " +
                ", ".join(f"{side} {rates[side][-1]:,.0f}" for side in sides))
        if len(parameters) > 1:
            raise Failed(f"{work}: the sides have {' and '.join(map(str, sorted(parameters)))} parameters")
        return {"work": work, "unit": "images/s" if work == "resnet50" else "tokens/s", "parameters": parameters.pop(),
                "rates": rates}

    def flops_per_token(self, parameters):
        """Chowdhery et al. 2022, appendix B: products with every parameter, and attention's two products of scores."""
        return 6 * parameters + 12 * self.sizes.layers_x_dim * self.sizes.tokens


def median_step(seconds):
    return statistics.median(seconds[len(seconds) // 3:])


def lines_of(measured, bench, reachable):
    yield ["work", "unit", "side", "rate", "first / this", "of the pairs", "MFU"]
    for one in measured:
        ours = next(iter(one["rates"].values()))
        for side, rates in one["rates"].items():
            ratios = sorted(own / other for own, other in zip(ours, rates))
            rate = statistics.median(rates)
            mfu = ""
            if one["unit"] == "tokens/s":
                mfu = f"{rate * bench.flops_per_token(one['parameters']) / reachable:.1%}"
            yield [one["work"], one["unit"], side, f"{rate:,.0f}", f"{statistics.median(ratios):.2f}",
                   f"{ratios[0]:.2f} to {ratios[-1]:.2f}", mfu]


WORKS = ["gpt2", "resnet50", "two-ranks"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--troika", default=HERE.parents[1] / "build" / "troika", type=pathlib.Path, help="the command")
    parser.add_argument("--own-resnet", default=HERE.parents[1] / "build/tests/bench_gpu/own_resnet", type=pathlib.Path,
                        help="the program of own_resnet.cc")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and safetensors")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: figures that mean nothing")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=WORKS, help="only these")
    parser.add_argument("--pairs", type=int, default=5, help="alternations of each work")
    parser.add_argument("--steps", type=int, help="steps of a run (default: 60)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--peak-tflops", type=float, help="MFU against this rate, and not what products reach")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write every run's rate")
    parser.add_argument("--look", action="store_true", help="only look whether there is a GPU")
    options = parser.parse_args()
    options.troika, options.own_resnet = options.troika.resolve(), options.own_resnet.resolve()
    return options


def main():
    options = arguments()
    reason = why_no_gpu() if options.device.startswith("cuda") else None
    if reason:
        print(f"bench-gpu: there is no GPU here: {reason}", file=sys.stderr)
        sys.exit(NO_GPU)
    if options.look:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="troika-bench-") as scratch:
            bench = GpuBench(options, pathlib.Path(scratch))
            products = bench.peer("products.py", options.device, bench.sizes.product)
            measured = [bench.measure(work) for work in options.works]
    except (Failed, OSError) as error:
        sys.exit(f"bench-gpu: {error}")
    reachable = options.peak_tflops * 1e12 if options.peak_tflops else products["operations_per_second"]
    print(f"{products['device']}, PyTorch {products['torch']}, bf16; {options.pairs} alternations, medians; MFU of "
          f"{reachable / 1e12:,.1f} TFLOP/s, " + ("as given" if options.peak_tflops else
                                                  f"which products of {bench.sizes.product:,} reach here") + "\n")
    print(laid_out(list(lines_of(measured, bench, reachable))))
    if options.json:
        options.json.write_text(json.dumps({"command": shlex.join(sys.argv), **products, "works": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
