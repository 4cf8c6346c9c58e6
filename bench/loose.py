"""A small GPT on two hosts with a slow link between them: replicas that exchange every 50 steps (DiLoCo), and after each
(gossip, all-reduce), against PyTorch DDP over the same link. Times are those of a step, exchanges included."""

import json
import pathlib

import layouts
import link

RECIPE = pathlib.Path(__file__).resolve().parent / "recipes" / "gpt-small.toml"
PEER = pathlib.Path(__file__).resolve().parent / "peers" / "ddp_gpt.py"
DELAY_MS, RATE_MBIT = 40, 20
GOAL = 5
DILOCO = ("sync.kind=local", "sync.every_steps=50", "sync.outer=nesterov", "sync.island=1")
KINDS = [("DiLoCo, H = 50", DILOCO, 200, GOAL),
         ("DiLoCo, H = 50, 5 fragments", (*DILOCO, "sync.fragments=5"), 200, GOAL),
         ("gossip", ("sync.kind=gossip", "sync.island=1"), 12, None),
         ("all_reduce", (), 12, None)]
PEER_STEPS = 12


def training(rows):
    """What `rows.row` takes, for each kind."""
    missing = link.why_not()
    if missing:
        rows.say(f"loose coupling over a slow link: left out, {missing}")
        return
    bench = rows.bench
    with link.Link(bench.scratch, DELAY_MS, RATE_MBIT) as wire:
        hosts = layouts.TwoHosts(bench, wire)

        def theirs():
            found = json.loads(hosts.torchrun(PEER, RECIPE, "--steps", PEER_STEPS).splitlines()[-1])
            return found["seconds"] / PEER_STEPS

        for name, sets, steps, goal in KINDS:
            def ours():
                sets_of_run = (f"runs_dir={bench.scratch}", f"train.steps={steps}", *sets)
                out = hosts.troika("train", RECIPE, "--json", "--overwrite",
                                   *(word for one in sets_of_run for word in ("--set", one)))[0]
                return json.loads(out)["seconds"] / steps

            yield (f"GPT of 0.8 M over {RATE_MBIT} Mbit/s, {DELAY_MS} ms: {name}", "troika", "PyTorch DDP", 2,
                   rows.alternate(name, ours, theirs), goal)
