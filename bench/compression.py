"""A small GPT on two hosts with a link of 200 Mbit/s between them, its gradients compressed, against PyTorch DDP with its
own hooks over the same link. Times are medians of a step."""

import json
import statistics

import layouts
import link
from loose import PEER, RECIPE
from runs import Failed

STEPS, QUICK_STEPS = 40, 10
GOAL = 1.3
# By what each sends of 4 bytes: 2, 2, 1, a rank-4 matrix, 1 % of values and places.
OURS = {"none": (), "bf16": ("compress.kind=bf16",), "int8": ("compress.kind=int8",),
        "power_sgd, rank 4": ("compress.kind=power_sgd", "compress.rank=4"),
        "top_k of 1 %": ("compress.kind=top_k", "compress.fraction=0.01")}
PAIRS = [("none", "none"), ("bf16", "bf16"), ("int8", "bf16"), ("power_sgd, rank 4", "power_sgd"),
         ("top_k of 1 %", "power_sgd")]
PEERS = {"none": "PyTorch DDP", "bf16": "PyTorch DDP, bf16 hook", "power_sgd": "PyTorch DDP, PowerSGD hook of rank 4"}
WITH_GOAL = ("power_sgd, rank 4", "top_k of 1 %")


class PeerFailed(Exception):
    """Of the other side: its row is left out."""


def training(rows):
    """What `rows.row` takes, for each kind."""
    missing = link.why_not()
    if missing:
        rows.say(f"compression over a link: left out, {missing}")
        return
    bench = rows.bench
    steps = QUICK_STEPS if rows.options.quick else STEPS
    with link.Link(bench.scratch) as wire:
        hosts = layouts.TwoHosts(bench, wire)

        def theirs(hook):
            try:
                out = hosts.torchrun(PEER, RECIPE, "--steps", steps, "--hook", hook)
            except Failed as error:
                raise PeerFailed(f"{PEERS[hook]}: {str(error).splitlines()[0]}") from None
            found = json.loads(out.splitlines()[-1])
            return statistics.median(found["step_seconds"][steps // 3:])

        def ours(kind):
            sets = (f"runs_dir={bench.scratch}", "name=compressed", f"train.steps={steps}", *OURS[kind])
            hosts.troika("train", RECIPE, "--json", "--overwrite", *(word for one in sets for word in ("--set", one)))
            lines = (bench.scratch / "compressed" / "metrics.jsonl").read_text().splitlines()
            return statistics.median(json.loads(line)["step_seconds"] for line in lines[steps // 3:])

        for kind, hook in PAIRS:
            try:
                pairs = rows.alternate(f"compression, {kind}", lambda: ours(kind), lambda: theirs(hook))
            except PeerFailed as error:
                rows.say(f"compression, {kind}: left out, {error}")
                continue
            yield (f"GPT of 0.8 M over {link.RATE_MBIT} Mbit/s, {link.DELAY_MS} ms: {kind}", "troika", PEERS[hook], 2,
                   pairs, GOAL if kind in WITH_GOAL else None)
