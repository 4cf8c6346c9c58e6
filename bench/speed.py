"""How fast a step is, against PyTorch DDP eager and compiled, and against the machine: the fourth table of bench.py.

As in the other tables, gradients are compared before a row is timed, runs alternate, and ratios are taken within a pair.
Beside the ratios stands the share of what the step's matrix products alone allow.
"""

import dataclasses
import json
import pathlib
import random
import re
import statistics

from runs import Failed, laid_out, measured, parameters_in, same_losses, same_work, say, summarised

NAME = "speed"
HERE = pathlib.Path(__file__).resolve().parent
STEPS, QUICK_STEPS = 12, 6
RANKS = 2
PEERS = {"eager": [], "compile": ["--compile"]}
DRAWN = 3  # models that are drawn anew in each run


@dataclasses.dataclass
class Work:
    name: str
    recipe: str  # of recipes/
    peer: str
    precision: str
    values: dict = dataclasses.field(default_factory=dict)  # in place of those of the recipe, on both sides
    sets: list = dataclasses.field(default_factory=list)  # of troika alone
    unit: str = "tokens/s"
    goals: tuple = ()  # of the ratio to DDP eager, and of the share of the products
    checked_in: str = "fp32"  # the precision in which gradients are compared
    floor: float = 0.0  # of that ratio, below which --floors fails: 85 % of what docs/benchmarks.md has


WORDS, RESNET = ("gpt-words.toml", "ddp_gpt.py"), ("resnet18.toml", "ddp_resnet.py")
# A ReLU whose input is next to zero has another gradient after other rounding: by percents of the largest, in fp32 on either side.
WORKS = {
    "words-bf16": Work("GPT, 50,304 words, bf16", *WORDS, "bf16", goals=(1.8, 0.65), floor=1.5),
    "words-fp32": Work("GPT, 50,304 words, fp32", *WORDS, "fp32", goals=(1.25, 0.78)),
    "words-zero": Work("GPT, 50,304 words, bf16, zero_stage = 1", *WORDS, "bf16", sets=["parallel.zero_stage=1"]),
    "bytes-bf16": Work("GPT, 256 words, bf16", *WORDS, "bf16", {"vocab_size": 256}, goals=(1.7, 0.70), floor=1.4),
    "bytes-fp32": Work("GPT, 256 words, fp32", *WORDS, "fp32", {"vocab_size": 256}, goals=(1.4, 0.80), floor=0.95),
    "resnet-bf16": Work("ResNet-18, bf16", *RESNET, "bf16", unit="images/s", checked_in="fp64", goals=(1.2, None), floor=1.2),
    "resnet-fp32": Work("ResNet-18, fp32", *RESNET, "fp32", unit="images/s", checked_in="fp64", goals=(1.2, None)),
}
OWN = "own-transformer"  # a program that trains modules of its own
OWN_ROWS = {"own transformer": [], "the same, memory not reused": ["--no-reuse"], "the same, PyTorch's loss": ["--no-fused-loss"]}
OWN_GOAL = 1.3
THREADS = "threads"  # the number that troika takes by itself, beside others
THREAD_WORKS = ("words-bf16", "bytes-bf16", "resnet-bf16")
# Ranks, threads a rank where that is said, and whether the threads are bound to cores.
THREAD_SETTINGS = [(1, None, False), (1, 1, False), (1, 2, False), (1, 4, False), (1, None, True), (2, None, False), (2, 1, False),
                   (2, 2, False)]
CHOICES = [*WORKS, OWN, "drawn", THREADS]


def drawn(seed):
    """Models that nobody has tuned for; the shares of the products are those of the rows above, less 5 points."""
    draws = random.Random(seed)
    for _ in range(DRAWN):
        dim, layers = draws.randrange(256, 513, 32), draws.randint(4, 8)
        words, length = draws.randint(20000, 60000), draws.randrange(65, 256, 2)
        precision = draws.choice(("bf16", "fp32"))
        values = {"dim": dim, "layers": layers, "heads": dim // 32, "ffn_dim": dim * 8 // 3 // 8 * 8, "vocab_size": words,
                  "seq_len": length}
        name = f"GPT {dim} x {layers}, {words:,} words, {length} tokens, {precision}"
        yield Work(name, *WORDS, precision, values, goals=(None, 0.60 if precision == "bf16" else 0.73))


def with_values(text, values):
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        if count != 1:
            raise Failed(f"the recipe has {count} lines of {key}")
    return text


class Speed:
    def __init__(self, bench):
        self.bench = bench
        self.recipe = bench.scratch / "speed.toml"
        self.folder = bench.scratch / "bench-speed"

    def train(self, work, steps, *sets):
        sets = [f"runs_dir={self.bench.scratch}", f"train.steps={steps}", "checkpoint.every_minutes=0", *work.sets, *sets]
        return self.bench.run([self.bench.options.troika, "train", self.recipe, "--ranks", RANKS, "--json", "--overwrite",
                               *(word for one in sets for word in ("--set", one))])

    def torchrun(self, script, *words, recipe=True):
        out = self.bench.run([self.bench.options.peer_python, "-m", "torch.distributed.run", "--standalone",
                              "--nproc-per-node", RANKS, HERE / "peers" / script, *([self.recipe] if recipe else []), *words])[0]
        return json.loads(out.splitlines()[-1])

    def troika(self, work, steps):
        out, _ = self.train(work, steps, f"train.precision={work.precision}")
        summary = json.loads(out)
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return measured(work.unit, [line["step_seconds"] for line in lines], summary["seconds"], summary["tokens"] // steps, {})

    def peer(self, work, steps, kind):
        found = self.torchrun(work.peer, "--steps", steps, "--precision", work.precision, *PEERS[kind])
        return measured(work.unit, found["step_seconds"], found["seconds"], found["targets_per_step"],
                        {"parameters": found["parameters"]})

    def check(self, work):
        self.train(work, 1, "debug.dump_steps=[1]", f"train.precision={work.checked_in}")
        dump = self.folder / "dump" / "step-1"
        found = json.loads(self.bench.run([self.bench.options.peer_python, HERE / "peers" / work.peer, self.recipe,
                                           "--check", dump])[0])
        held = parameters_in(dump / "gradients.safetensors")
        same_work(work.name, held, found)
        return {"parameters": held, "largest_gradient_error": found["largest_gradient_error"]}

    def kinds(self):
        """The peers that are timed: with --floors the one that floors are of."""
        return ["eager"] if self.bench.options.floors else list(PEERS)

    def row(self, work):
        self.recipe.write_text(with_values((HERE / "recipes" / work.recipe).read_text(), work.values))
        say(f"{work.name}: one step of both, to compare")
        checked = self.check(work)
        steps = QUICK_STEPS if self.bench.options.quick else STEPS
        floor = None
        if work.recipe == WORDS[0]:
            products = self.torchrun("products.py", "--precision", work.precision)
            floor = products["tokens"] / products["seconds"]
        pairs = {kind: [] for kind in self.kinds()}
        for number in range(self.bench.options.pairs + 1):  # the first is the warm-up
            for kind in pairs:
                ours, theirs = self.troika(work, steps), self.peer(work, steps, kind)
                if ours.targets_per_step != theirs.targets_per_step:
                    raise Failed(f"{work.name}: {ours.targets_per_step} targets a step, the peer {theirs.targets_per_step}")
                say(f"{work.name}: pair {number} of {self.bench.options.pairs}: troika {ours.step_rate:.0f}, "
                    f"DDP {kind} {theirs.step_rate:.0f} {work.unit}")
                if number > 0:
                    pairs[kind].append((ours, theirs))
        rates = {kind: summarised(found, kind)["step_rate"] for kind, found in pairs.items()}
        return {"work": work.name, "unit": work.unit, "steps": steps, **checked, "rates": rates, "goals": work.goals, "floor": work.floor,
                "products": floor,
                "pairs": {kind: [{"troika": dataclasses.asdict(ours), "peer": dataclasses.asdict(theirs)} for ours, theirs in found]
                          for kind, found in pairs.items()}}

    def own(self, steps, precision, *flags):
        program = self.bench.options.troika.parent / "tests" / "bench_own_transformer" / "own_transformer"
        out = self.bench.run([self.bench.options.troika, "launch", "--ranks", RANKS, program, steps, precision, *flags])[0]
        return json.loads(out)

    def own_row(self, name, precision, flags):
        """Both sides begin with the same values and batches: the first losses are compared."""
        steps = QUICK_STEPS if self.bench.options.quick else STEPS
        pairs = {kind: [] for kind in self.kinds()}
        for number in range(self.bench.options.pairs + 1):
            for kind in pairs:
                ours = self.own(steps, precision, *flags)
                theirs = self.torchrun("ddp_transformer.py", "--steps", steps, "--precision", precision, *PEERS[kind], recipe=False)
                if ours["parameters"] != theirs["parameters"]:
                    raise Failed(f"{name}: {ours['parameters']} parameters, the peer {theirs['parameters']}")
                if precision == "fp32":
                    same_losses(name, ours["losses"][:1], theirs["losses"][:1])
                found = [measured("tokens/s", one["step_seconds"], one["seconds"], one["targets_per_step"], {}) for one in (ours, theirs)]
                say(f"{name}, {precision}: pair {number} of {self.bench.options.pairs}: troika {found[0].step_rate:.0f}, "
                    f"DDP {kind} {found[1].step_rate:.0f} tokens/s")
                if number > 0:
                    pairs[kind].append(found)
        return {"work": f"{name}, {precision}", "unit": "tokens/s", "steps": steps, "products": None, "floor": 0.0,
                "goals": () if flags else (OWN_GOAL, None),
                "rates": {kind: summarised(found, kind)["step_rate"] for kind, found in pairs.items()}}

    def with_threads(self, work, steps, ranks, threads, is_bound):
        variables = ["-u", "OMP_NUM_THREADS"] if threads is None else [f"OMP_NUM_THREADS={threads}"]
        if is_bound:
            variables.append("OMP_PROC_BIND=true")
        sets = [f"runs_dir={self.bench.scratch}", f"train.steps={steps}", "checkpoint.every_minutes=0", f"train.precision={work.precision}"]
        out, _ = self.bench.run(["env", *variables, self.bench.options.troika, "train", self.recipe, "--ranks", ranks, "--json",
                                 "--overwrite", *(word for one in sets for word in ("--set", one))])
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return measured(work.unit, [line["step_seconds"] for line in lines], 1, json.loads(out)["tokens"] // steps, {}).step_rate

    def thread_rows(self, work):
        """In turn, as the pairs of other rows: each setting is compared with what troika takes by itself in the same turn."""
        self.recipe.write_text(with_values((HERE / "recipes" / work.recipe).read_text(), work.values))
        steps = QUICK_STEPS if self.bench.options.quick else STEPS
        rates = {setting: [] for setting in THREAD_SETTINGS}
        for number in range(self.bench.options.pairs):
            for setting, found in rates.items():
                found.append(self.with_threads(work, steps, *setting))
                say(f"{work.name}: turn {number + 1}, {setting_name(setting)}: {found[-1]:.0f} {work.unit}")
        return [{"work": work.name, "setting": setting_name(setting), "unit": work.unit, "rate": statistics.median(found),
                 "over_default": statistics.median(one / default for one, default in zip(found, rates[(setting[0], None, False)]))}
                for setting, found in rates.items()]

    def measured(self):
        chosen = self.bench.options.speed
        works = [work for key, work in WORKS.items() if key in chosen]
        if "drawn" in chosen:
            say(f"models drawn from --seed {self.bench.options.seed}")
            works += drawn(self.bench.options.seed)
        rows = [self.row(work) for work in works]
        if OWN in chosen:
            rows += [self.own_row(name, precision, flags) for precision in ("bf16", "fp32") for name, flags in OWN_ROWS.items()]
        threads = [row for key in THREAD_WORKS for row in self.thread_rows(WORKS[key])] if THREADS in chosen else []
        return {"seed": self.bench.options.seed, "rows": rows, "threads": threads}


def setting_name(setting):
    ranks, threads, is_bound = setting
    name = f"{ranks} rank{'s' if ranks > 1 else ''}, " + ("by itself" if threads is None else f"{threads} thread{'s' if threads > 1 else ''}")
    return name + (", bound" if is_bound else "")


def below_floors(result):
    """A line for each row that is slower, beside DDP eager, than what has been reached allows."""
    return [f"{row['work']}: {row['rates']['eager']['ratio']:.2f} of DDP eager, and its floor is {row['floor']:.2f}"
            for row in result["rows"] if row["rates"]["eager"]["ratio"] < row["floor"]]


def text_of(result):
    lines = [["work on 2 ranks", "unit", "troika", "DDP eager", "ratio", "of the pairs", "DDP compiled", "ratio", "of products alone",
              "goals"]]
    for row in result["rows"]:
        eager, compiled = row["rates"]["eager"], row["rates"].get("compile")
        share = f"{eager['troika'] / row['products']:.0%} of {row['products']:,.0f}" if row["products"] else ""
        goals = " and ".join(text for text in (f"{row['goals'][0]}" if row["goals"] and row["goals"][0] else "",
                                               f"{row['goals'][1]:.0%}" if row["goals"] and row["goals"][1] else "") if text)
        lines.append([row["work"], row["unit"], f"{eager['troika']:,.0f}", f"{eager['eager']:,.0f}", f"{eager['ratio']:.2f}",
                      f"{eager['smallest_ratio']:.2f} to {eager['largest_ratio']:.2f}",
                      f"{compiled['compile']:,.0f}" if compiled else "", f"{compiled['ratio']:.2f}" if compiled else "", share, goals])
    text = f"Models drawn from --seed {result['seed']}.\n" + laid_out(lines) if result["rows"] else ""
    if not result["threads"]:
        return text
    lines = [["work", "ranks and threads", "unit", "rate", "of what troika takes by itself"]]
    lines += [[row["work"], row["setting"], row["unit"], f"{row['rate']:,.0f}", f"{row['over_default']:.2f}"] for row in result["threads"]]
    return text + laid_out(lines)
