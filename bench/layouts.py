"""The same GPT spread over two ranks in every way, against what PyTorch has for each: the third table of bench.py.

As there, both sides' gradients are compared before they are timed, and here the losses of two steps; runs alternate,
and ratios are taken within a pair.
"""

import dataclasses
import json
import pathlib
import re

import link
from runs import Failed, laid_out, measured, parameters_in, same_losses, same_work, say, summarised

NAME = "layouts"
HERE = pathlib.Path(__file__).resolve().parent
RECIPE = HERE / "recipes" / "layouts.toml"
FROZEN_RECIPE = HERE / "recipes" / "gpt2.toml"
PEER = HERE / "peers" / "layouts_gpt.py"
RANKS = 2  # the microbatches below are for two
STEPS, QUICK_STEPS = 12, 4
LINK_STEPS, QUICK_LINK_STEPS = 6, 3
# The smallest GPT there is: what it takes is what a process takes.
NO_MODEL = [f"model.{key}=2" for key in ("layers", "dim", "heads", "ffn_dim", "vocab_size", "seq_len")]
NO_MODEL += ['model.position="learned"', "train.global_batch_size=2", "train.micro_batch_size=1"]


@dataclasses.dataclass
class Layout:
    key: str  # of --layouts
    name: str
    parallel: list  # keys of [parallel]
    samples: int  # of a microbatch, on both sides
    peer: str  # of layouts_gpt.py
    peer_name: str
    ranks: int = RANKS
    is_frozen: bool = False  # but for the last block of FROZEN_RECIPE

    @property
    def recipe(self):
        return FROZEN_RECIPE if self.is_frozen else RECIPE

    @property
    def sets(self):
        return [f"train.micro_batch_size={self.samples}", *(f"parallel.{one}" for one in self.parallel)]


ALONE = Layout("one-rank", "one rank alone", ["data=1"], 8, "alone", "one process", ranks=1)
DATA = Layout("data", "data = 2", ["data=2"], 4, "ddp", "DDP")
PIPELINE = Layout("pipeline-1f1b", "pipeline = 2, 1f1b", ["pipeline=2", "pipeline_schedule=1f1b"], 2, "1f1b",
                  "Schedule1F1B")
EAGER = Layout("pipeline-eager-1f1b", "pipeline = 2, eager-1f1b", ["pipeline=2", "pipeline_schedule=eager-1f1b"], 2, "1f1b",
               "Schedule1F1B")
LAYOUTS = [
    DATA,
    Layout("tensor", "tensor = 2", ["tensor=2"], 8, "tensor", "DTensor"),
    PIPELINE,
    Layout("pipeline-zb-h1", "pipeline = 2, zb-h1", ["pipeline=2", "pipeline_schedule=zb-h1"], 2, "zb1p",
           "ScheduleInterleavedZeroBubble"),
    Layout("zero-1", "data = 2, zero_stage = 1", ["data=2", "zero_stage=1"], 4, "fsdp-keep", "FSDP2, no reshard"),
    Layout("zero-2", "data = 2, zero_stage = 2", ["data=2", "zero_stage=2"], 4, "fsdp-keep", "FSDP2, no reshard"),
    Layout("zero-3", "data = 2, zero_stage = 3", ["data=2", "zero_stage=3"], 4, "fsdp", "FSDP2, reshard"),
    Layout("frozen", "GPT of 124 million, last block trained, zero_stage = 3", ["data=2", "zero_stage=3"], 2, "fsdp",
           "FSDP2, reshard", is_frozen=True),
]
LINK_LAYOUTS = [DATA, PIPELINE, EAGER]  # beside ALONE, which needs no link: whether a second host pays
SLOW_LINK = "slow-link"
CHOICES = [*(layout.key for layout in LAYOUTS), SLOW_LINK]


class OneHost:
    name = "one host"

    def __init__(self, bench, ranks=RANKS):
        self.bench, self.ranks = bench, ranks

    def troika(self, *words):
        return self.bench.run([self.bench.options.troika, *words, "--ranks", self.ranks])

    def torchrun(self, *words):
        return self.bench.run([self.bench.options.peer_python, "-m", "torch.distributed.run", "--standalone",
                               "--nproc-per-node", self.ranks, *words])[0]


class TwoHosts:
    """A rank on each."""

    name = f"{link.RATE_MBIT} Mbit/s, {link.DELAY_MS} ms"

    def __init__(self, bench, wire):
        self.bench, self.wire = bench, wire

    def run(self, command_of):
        return self.bench.run_together([self.wire.on(host, command_of(host)) for host in range(RANKS)])[0]

    def troika(self, *words):
        return self.run(lambda host: [self.bench.options.troika, *words, "--nodes", RANKS, "--node-rank", host,
                                      "--ranks-per-node", 1, "--rendezvous", f"{link.ADDRESS}:29500"])

    def torchrun(self, *words):
        return self.run(lambda host: ["env", "GLOO_SOCKET_IFNAME=eth0", self.bench.options.peer_python, "-m",
                                      "torch.distributed.run", "--nnodes", RANKS, "--node-rank", host,
                                      "--nproc-per-node", 1, "--master-addr", link.ADDRESS, "--master-port", 29501,
                                      *words])[0]


class Layouts:
    def __init__(self, bench):
        self.bench = bench
        self.folder = bench.scratch / "bench-layouts"

    def train(self, hosts, steps, sets, recipe=None):
        sets = [f"runs_dir={self.bench.scratch}", f"train.steps={steps}", "checkpoint.every_minutes=0", *sets]
        out, err = hosts.troika("train", recipe or RECIPE, "--json", "--overwrite", *(w for one in sets for w in ("--set", one)))
        summary = json.loads(out)
        peaks = {key: max(rank[key] for rank in summary["ranks"]) for key in ("peak_memory_bytes", "peak_tensor_bytes")}
        return summary, peaks, err

    def troika(self, hosts, layout, steps):
        summary, peaks, err = self.train(hosts, steps, layout.sets, layout.recipe)
        seconds = [json.loads(line)["step_seconds"]
                   for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        if len(seconds) != steps or summary["tokens"] % steps:
            raise Failed(f"troika ran {len(seconds)} steps of {layout.name} instead of {steps}, or unequal ones")
        engine = re.search(r"engine (\S+)", err)
        return measured("tokens/s", seconds, summary["seconds"], summary["tokens"] // steps,
                        {"engine": engine[1] if engine else "unknown", **peaks, "mesh": summary["mesh"]})

    def say_peer(self, hosts, layout, *words):
        out = hosts.torchrun(PEER, layout.recipe, "--layout", layout.peer, "--micro-batch-size", layout.samples, *words)
        return json.loads(out.splitlines()[-1])

    def peer(self, hosts, layout, steps):
        found = self.say_peer(hosts, layout, "--steps", steps)
        facts = {key: found[key] for key in ("torch", "threads", "parameters", "without_model_bytes")}
        return measured("tokens/s", found["step_seconds"], found["seconds"], found["targets_per_step"],
                        facts | {"peak_memory_bytes": max(found["peak_memory_bytes"])})

    def check(self, layout):
        """Of two steps in this layout, on both sides; files are in memory then."""
        host = OneHost(self.bench, layout.ranks)
        self.train(host, 2, [*layout.sets, "debug.dump_steps=[1, 2]"], layout.recipe)
        losses = [json.loads(line)["loss"] for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        dump = self.folder / "dump"
        found = self.say_peer(host, layout, "--check", dump)
        held = parameters_in(dump / "step-1" / "parameters.safetensors")
        same_work(layout.name, held, found)
        same_losses(layout.name, losses, found["losses"])
        return {"parameters": held, "largest_gradient_error": found["largest_gradient_error"],
                "losses": {"troika": losses, "pytorch": found["losses"]}}

    def row(self, hosts, layout, steps, checked):
        pairs = []
        for number in range(1, self.bench.options.pairs + 1):
            ours, theirs = self.troika(hosts, layout, steps), self.peer(hosts, layout, steps)
            if ours.targets_per_step != theirs.targets_per_step or theirs.facts["parameters"] != checked["parameters"]:
                raise Failed(f"{layout.name}: {ours.targets_per_step} tokens a step and {checked['parameters']} "
                             f"parameters, but the peer has {theirs.targets_per_step} and {theirs.facts['parameters']}")
            pairs.append((ours, theirs))
            say(f"{layout.name}, {hosts.name}: pair {number} of {self.bench.options.pairs}, {steps} steps: "
                f"troika {ours.step_rate:.0f}, {layout.peer_name} {theirs.step_rate:.0f} tokens/s")
        return {"layout": layout.name, "hosts": hosts.name, "steps": steps, "engine": pairs[0][0].facts["engine"],
                "peer": layout.peer_name, **checked, "targets_per_step": pairs[0][0].targets_per_step,
                **summarised(pairs, "pytorch"),
                "peak_memory_bytes": {side: max(one.facts["peak_memory_bytes"] for one in runs)
                                      for side, runs in zip(("troika", "pytorch"), zip(*pairs))},
                "peak_tensor_bytes": max(ours.facts["peak_tensor_bytes"] for ours, _ in pairs),
                "pairs": [{"troika": dataclasses.asdict(ours), "pytorch": dataclasses.asdict(theirs)}
                          for ours, theirs in pairs]}

    def measured(self):
        quick, chosen = self.bench.options.quick, self.bench.options.layouts
        here = [layout for layout in LAYOUTS if layout.key in chosen]
        left_out = link.why_not() if SLOW_LINK in chosen else None
        there = LINK_LAYOUTS if SLOW_LINK in chosen and not left_out else []
        checked = {}
        for layout in [*LAYOUTS, EAGER, ALONE]:
            if layout in here + there or layout is ALONE and there:
                say(f"{layout.name}: two steps of both, to compare")
                checked[layout.key] = self.check(layout)
        host = OneHost(self.bench)
        rows = [self.row(host, layout, QUICK_STEPS if quick else STEPS, checked[layout.key]) for layout in here]
        result = {"rows": rows, "left_out": left_out}
        if there:
            steps = QUICK_LINK_STEPS if quick else LINK_STEPS
            alone = self.row(OneHost(self.bench, 1), ALONE, steps, checked[ALONE.key])
            with link.Link(self.bench.scratch) as wire:
                data, pipeline, eager = (self.row(TwoHosts(self.bench, wire), layout, steps, checked[layout.key])
                                         for layout in there)
            rows += [alone, data, pipeline, eager]
            result |= {"pipeline_over_data": over(eager, data), "pipeline_over_one_rank": over(eager, alone),
                       "data_over_one_rank": over(data, alone)}
        empty = [pair["pytorch"]["facts"]["without_model_bytes"] for row in rows for pair in row["pairs"]]
        result["without_model_bytes"] = {"troika": self.train(host, 1, NO_MODEL)[1]["peak_memory_bytes"],
                                         "pytorch": max(empty, default=0)}
        return result


def over(row, other):
    """How many times as fast, on each side."""
    return {side: row["step_rate"][side] / other["step_rate"][side] for side in ("troika", "pytorch")}


def megabytes(size):
    return f"{size / 1e6:,.0f} MB"


def text_of(result):
    lines = [["layout", "hosts", "engine", "troika", "peer", "tokens/s", "ratio", "of the pairs", "troika's peak",
              "of tensors", "peer's peak"]]
    for row in result["rows"]:
        rate, peak = row["step_rate"], row["peak_memory_bytes"]
        lines.append([row["layout"], row["hosts"], row["engine"], f"{rate['troika']:,.0f}", row["peer"],
                      f"{rate['pytorch']:,.0f}", f"{rate['ratio']:.2f}",
                      f"{rate['smallest_ratio']:.2f} to {rate['largest_ratio']:.2f}", megabytes(peak["troika"]),
                      megabytes(row["peak_tensor_bytes"]), megabytes(peak["pytorch"])])
    if result["left_out"]:
        lines += [[layout.name, TwoHosts.name, "left out", *["-"] * 8] for layout in LINK_LAYOUTS]
    said = []
    if result["rows"]:
        empty = result["without_model_bytes"]
        said.append(f"Of the peaks, {megabytes(empty['troika'])} of troika's and {megabytes(empty['pytorch'])} of "
                    "PyTorch's are there without a model.")
    if result["left_out"]:
        said.append(f"The slow link is left out: {result['left_out']}.")
    if "pipeline_over_data" in result:
        for what, other, key in (("pipeline", "data = 2", "pipeline_over_data"),
                                 ("pipeline", "one rank alone", "pipeline_over_one_rank"),
                                 ("data", "one rank alone", "data_over_one_rank")):
            said.append(f"Over the slow link {what} = 2 trains {result[key]['troika']:.2f} times as fast as {other} in "
                        f"troika, {result[key]['pytorch']:.2f} times in PyTorch.")
    return "\n".join([laid_out(lines), *said])
