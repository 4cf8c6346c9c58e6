"""`troika mesh`, and that a pipeline does what its schedule says, with the bytes that docs/parallelism.md states."""

import collections
import json
import pathlib
import re

import command
from command import CommandTest, slow

USAGE = 2
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEDULES = {"gpipe": 1, "1f1b": 1, "eager-1f1b": 1, "interleaved-1f1b": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}


class Mesh(CommandTest):
    def mesh(self, *sets, ranks):
        words = [word for one in sets for word in ("--set", one)]
        return json.loads(self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", ranks, "--json", *words)).out)

    def test_every_rank_is_told_what_it_holds_and_whom_it_talks_to(self):
        plan = self.mesh("model.layers=4", "parallel.pipeline=2", "parallel.tensor=2", "parallel.zero_stage=3", ranks=8)
        self.assertEqual(plan["mesh"], {"pipeline": 2, "data": 2, "context": 1, "tensor": 2})
        self.assertEqual([rank["rank"] for rank in plan["ranks"]], list(range(8)))
        units = ["embedding", "layer 0", "layer 1", "layer 2", "layer 3", "head"]
        for tensor in (0, 1):
            for data in (0, 1):
                stages = [rank for rank in plan["ranks"]
                          if (rank["coordinates"]["data"], rank["coordinates"]["tensor"]) == (data, tensor)]
                self.assertEqual([unit for rank in stages for unit in rank["units"]], units)
        for rank in plan["ranks"]:
            for axis in ("data", "tensor", "pipeline"):
                group = rank["groups"][axis]
                self.assertIn(rank["rank"], group)
                self.assertTrue(all(plan["ranks"][peer]["groups"][axis] == group for peer in group))
            self.assertEqual(rank["kept"], rank["updated"])
            self.assertLess(rank["kept"], rank["parameters"])
        # What ZeRO cuts is all there, once.
        for rank in plan["ranks"]:
            shards = [plan["ranks"][peer]["updated"] for peer in rank["groups"]["data"]]
            self.assertEqual(sum(shards), rank["parameters"])

    def test_every_rank_is_told_its_device(self):
        def devices(*words):
            done = self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", 4, "--json", *words))
            return [rank["device"] for rank in json.loads(done.out)["ranks"]]

        self.assertEqual(devices("--set", "train.device=cpu"), ["cpu"] * 4)
        cuda = ("--set", "train.device=cuda")
        self.assertEqual(devices(*cuda), ["cuda:0", "cuda:1", "cuda:2", "cuda:3"])
        self.assertEqual(devices(*cuda, "--ranks-per-node", 2), ["cuda:0", "cuda:1", "cuda:0", "cuda:1"])
        self.assertEqual(devices("--set", "train.device=cuda:1"), ["cuda:1"] * 4)
        words = self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", 2, *cuda)).out
        self.assertRegex(words, "rank +data +device +holds")

    def test_parameters_add_up(self):
        one = self.mesh(ranks=1)
        self.assertEqual(one["ranks"][0]["parameters"], one["parameters"])
        self.assertEqual(one["ranks"][0]["updated"], one["parameters"])
        halves = self.mesh("parallel.pipeline=2", "model.layers=2", "model.tied_embeddings=false", ranks=2)
        self.assertEqual(sum(rank["parameters"] for rank in halves["ranks"]), halves["parameters"])

    def test_a_cut_by_hand(self):
        plan = self.mesh("model.layers=4", "parallel.pipeline=2", "parallel.stage_units=[5, 1]", ranks=2)
        self.assertEqual(plan["ranks"][1]["units"], ["head"])

    def test_a_cut_by_cost_counts_the_head(self):
        for vocabulary, last in ((256, ["layer 2", "layer 3", "head"]), (20000, ["head"])):
            plan = self.mesh("model.layers=4", "parallel.pipeline=2", "data.kind=random",
                             f"model.vocab_size={vocabulary}", ranks=2)
            self.assertEqual(plan["ranks"][1]["units"], last)

    def test_in_words(self):
        shown = self.succeeds(self.troika("mesh", "recipe.toml", "--set", "model.layers=4", "--set",
                                          "parallel.pipeline=2", "--ranks", 4)).out
        self.assertIn("pipeline 2 x data 2 x context 1 x tensor 1", shown)
        self.assertRegex(shown, r"\n0 +0 +0 +embedding, layers 0-1 +.*data 0 1; pipeline 0 2; tied stages 0 2\n")

    def test_shards_that_are_copied(self):
        plan = self.mesh("parallel.zero_stage=3", "parallel.shard=2", ranks=4)
        self.assertEqual([rank["groups"] for rank in plan["ranks"]],
                         [{"data shard": [0, 1], "data replica": [0, 2]}, {"data shard": [0, 1], "data replica": [1, 3]},
                          {"data shard": [2, 3], "data replica": [0, 2]}, {"data shard": [2, 3], "data replica": [1, 3]}])

    def test_any_engine_that_there_is(self):
        self.mesh("comm.engine=nccl", ranks=2)

    def test_many_ranks_in_words(self):
        batch = ("--set", "train.global_batch_size=64")
        shown = self.succeeds(self.troika("mesh", "recipe.toml", "--set", "parallel.tensor=2", *batch, "--ranks", 64)).out
        self.assertRegex(shown, r"\n1 +0 +1 +.*data 1-63 by 2; tensor 0 1\n")
        shown = self.succeeds(self.troika("mesh", "recipe.toml", *batch, "--ranks", 64)).out
        self.assertRegex(shown, r"\n7 +7 +.*data 0-63\n")
        self.fails(self.troika("mesh", "recipe.toml", "--ranks", 4097), USAGE, "4097", "4096")
        self.fails(self.troika("mesh", "recipe.toml", "--set", "parallel.data=5000", "--set",
                               "train.global_batch_size=5000"), USAGE, "5000 ranks", "4096")

    def test_the_mesh_of_the_documentation(self):
        shown = re.findall(r"```\n\$ troika (mesh .*)\n([^`]*)```", (ROOT / "docs" / "parallelism.md").read_text())
        self.assertEqual(len(shown), 1)
        for words, table in shown:
            words = [str(ROOT / word) if word.endswith(".toml") else word for word in words.split()]
            self.assertEqual(self.succeeds(self.troika(*words)).out, table)

    def test_one_data_rank_takes_any_shard(self):
        plan = self.mesh("parallel.zero_stage=3", "parallel.shard=2", ranks=1)
        self.assertEqual(plan["ranks"][0]["updated"], plan["parameters"])

    def test_what_cannot_be_split_is_refused_with_what_can(self):
        def refused(*sets, ranks):
            words = [word for one in sets for word in ("--set", one)]
            return self.troika("mesh", "recipe.toml", "--ranks", ranks, *words)

        self.fails(refused("parallel.tensor=3", ranks=3), USAGE, "the model has 2 heads", "write tensor = 1")
        self.fails(refused("parallel.pipeline=2", ranks=2), USAGE, "the model has 1 layer")
        self.fails(refused("model.layers=8", "parallel.pipeline=2", "parallel.virtual_stages=2", ranks=2), USAGE,
                   "virtual_stages", 'write pipeline_schedule = "interleaved-1f1b"')
        self.fails(refused("parallel.shard=3", ranks=4), USAGE, "does not divide the data axis of 4 ranks",
                   "write shard = 2")
        self.fails(refused("parallel.zero_stage=3", "parallel.shard=2", ranks=3), USAGE, "write shard = 3")
        self.fails(refused("parallel.tensor=2", ranks=3), USAGE, "does not divide 3 ranks",
                   "start 2 or 4 ranks, or write tensor = 1")
        self.fails(refused("model.layers=2", "parallel.data=2", "parallel.pipeline=2", ranks=2), USAGE,
                   "data = 2: data x tensor x pipeline x context is 4, and this run has 2 ranks")
        self.fails(refused(ranks=1.5), USAGE, "mesh: --ranks 1.5 is no whole number")
        self.fails(refused("parallel.stage_units=[9, 9, 9]", ranks=1), USAGE, "add up to 3 units")


RUNS = [(8, ("model.layers=4", "parallel.pipeline=2", "parallel.tensor=2", "parallel.zero_stage=1")),
        (4, ("model.layers=2", "parallel.tensor=2", "parallel.zero_stage=3")),
        (4, ("parallel.zero_stage=3", "parallel.shard=2")),
        (3, ("model.layers=5", "parallel.pipeline=3", "parallel.stage_units=[3, 1, 3]"))]


class Talk(CommandTest):
    """Who holds what and talks to whom in a run, as its flight recorders have it, is what `troika mesh` says."""

    def test_a_run_is_as_the_mesh_says(self):
        for ranks, sets in RUNS:
            with self.subTest(" ".join(sets)):
                words = [word for one in sets for word in ("--set", one)]
                mesh = self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", ranks, "--json", *words))
                plan = json.loads(mesh.out)
                self.succeeds(self.train(*sets, ranks=ranks, flags=("--overwrite",)))
                shown = json.loads(self.succeeds(self.troika("inspect", "runs/small", "--json")).out)
                self.assertEqual([one["rank"] for one in shown["ranks"]], list(range(ranks)))
                self.assertEqual(self.groups_of(shown), self.groups_planned(plan))
                for own, rank in zip(plan["ranks"], shown["ranks"]):
                    self.check_labels(plan, own, [one["label"] for one in rank["operations"]])

    def groups_of(self, shown):
        members = collections.defaultdict(list)
        for rank in shown["ranks"]:
            for axis, group in {(one["axis"], one["group"]) for one in rank["operations"]}:
                members[axis, group].append(rank["rank"])
        return sorted((axis, ranks) for (axis, _), ranks in members.items() if axis != "world")

    def groups_planned(self, plan):
        found = {(axis, tuple(group)) for rank in plan["ranks"] for axis, group in rank["groups"].items()}
        return sorted((axis, list(group)) for axis, group in found)

    def check_labels(self, plan, own, labels):
        stages = {stage: peer for peer in own["groups"].get("pipeline", [own["rank"]]) for stage in plan["ranks"][peer]["stages"]}
        transfers = [re.fullmatch(r"(send|receive) (?:activation|gradient) \d+ \(for stage (\d+)\)", label)
                     for label in labels]
        received = {int(one[2]) for one in transfers if one and one[1] == "receive"}
        sent = {int(one[2]) for one in transfers if one and one[1] == "send"}
        several = len(stages) > 1
        self.assertEqual(received, set(own["stages"]) if several else set())
        neighbours = {near for stage in own["stages"] for near in (stage - 1, stage + 1)}
        self.assertEqual(sent, neighbours & set(stages) if several else set())
        if "tensor" in own["groups"]:  # whose operations name the layer
            layers = {match[1] for label in labels if (match := re.match(r"layer (\d+) ", label))}
            self.assertEqual(layers, {unit.split()[1] for unit in own["units"] if unit.startswith("layer ")})


class Schedules(CommandTest):
    """A run's trace, and the peak of its activations, against the simulator's program."""

    def test_the_trace_has_the_order_of_the_program(self):
        for schedule in ("1f1b", "zb-v"):
            with self.subTest(schedule):
                self.compare(schedule, SCHEDULES[schedule], stages=2, microbatches=4)

    @slow
    def test_the_trace_has_the_order_of_every_program(self):
        for schedule, virtual_stages in SCHEDULES.items():
            with self.subTest(schedule):
                self.compare(schedule, virtual_stages, stages=2, microbatches=4)

    @slow
    def test_any_number_of_microbatches(self):
        for schedule, stages, microbatches in (("1f1b", 4, 3), ("zb-h1", 3, 1), ("zb-v", 2, 5)):
            with self.subTest(schedule):
                self.compare(schedule, SCHEDULES[schedule], stages, microbatches)

    @slow
    def test_more_virtual_stages_a_rank(self):
        for schedule, virtual_stages in (("gpipe", 3), ("interleaved-1f1b", 3), ("interleaved-1f1b", 4)):
            with self.subTest(schedule, virtual_stages=virtual_stages):
                self.compare(schedule, virtual_stages, stages=2, microbatches=5)

    @slow
    def test_beside_the_other_axes(self):
        """Each rank of the data and tensor axes has the order and the peak of its stage."""
        for schedule, data, tensor in (("gpipe", 2, 1), ("1f1b", 1, 2), ("interleaved-1f1b", 2, 1), ("zb-h1", 1, 2),
                                       ("zb-h2", 2, 1), ("zb-v", 2, 2)):
            with self.subTest(schedule):
                self.compare(schedule, SCHEDULES[schedule], 2, 3, data, tensor)

    def compare(self, schedule, virtual_stages, stages, microbatches, data=1, tensor=1):
        done = self.succeeds(self.train(
            "model.layers=8", f"train.global_batch_size={data * microbatches}", "train.micro_batch_size=1",
            f"parallel.pipeline={stages}", f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={virtual_stages}",
            f"parallel.data={data}", f"parallel.tensor={tensor}", "train.evaluate_every_steps=0",
            "observe.trace_steps=[2, 2]", ranks=stages * data * tensor, flags=("--overwrite", "--json")))
        words = ("--schedule", schedule, "--stages", stages, "--microbatches", microbatches, "--virtual-stages", virtual_stages,
                 "--forward", 1, "--backward", 1, "--weight", 1, "--communicate", 0, "--json")
        simulated = json.loads(self.succeeds(self.troika("simulate", "schedule", *words)).out)
        trace = json.loads((self.run_folder / "trace.json").read_text())["traceEvents"]
        summary = json.loads(done.out.splitlines()[-1])
        self.assertEqual(len(summary["ranks"]), stages * data * tensor)
        for rank in summary["ranks"]:
            stage = simulated["ranks"][rank["rank"] // (data * tensor)]
            spans = [event for event in trace if event["ph"] == "X" and event["pid"] == rank["rank"]
                     and re.fullmatch(r"[FBW]\d+ \(stage \d+\)", event["name"])]
            run = [event["name"] for event in sorted(spans, key=lambda event: event["ts"])]
            names = {"F": "F", "B": "B", "W": "W", "BW": "B"}
            program = [f"{names[action['kind']]}{action['microbatch']} (stage {action['stage']})"
                       for action in stage["actions"]]
            self.assertEqual(run, program)
            self.assertEqual(rank["peak_activations"], stage["peak_activations"])

    @slow
    def test_a_cut_sends_tokens_x_dim_each_way(self):
        """For each microbatch, in the precision of the run, divided by the tensor axis; over Gloo, as on any wire."""
        tokens, dim, microbatches, stages = 2 * 32, 32, 4, 2
        for precision, size, tensor, schedule in (("fp32", 4, 1, "1f1b"), ("bf16", 2, 2, "1f1b"),
                                                  ("fp32", 4, 2, "interleaved-1f1b")):
            virtual_stages = SCHEDULES[schedule]
            with self.subTest(f"{precision}, tensor = {tensor}, {schedule}"):
                self.succeeds(self.train(
                    "model.layers=4", f"train.global_batch_size={2 * microbatches}", "train.micro_batch_size=2",
                    "train.steps=1", "train.evaluate_every_steps=0", f"train.precision={precision}", "comm.engine=gloo",
                    f"parallel.pipeline={stages}", f"parallel.tensor={tensor}",
                    f"parallel.pipeline_schedule={schedule}", f"parallel.virtual_stages={virtual_stages}",
                    ranks=stages * tensor, flags=("--overwrite",)))
                shown = json.loads(self.succeeds(self.troika("inspect", "runs/small", "--json")).out)
                sends = [one for rank in shown["ranks"] for one in rank["operations"]
                         if one["axis"] == "pipeline" and one["label"].startswith("send ")]
                expected = collections.Counter()
                for cut in range(stages * virtual_stages - 1):  # between stages `cut` and `cut` + 1
                    for microbatch in range(microbatches):
                        expected[f"send activation {microbatch} (for stage {cut + 1})"] = tensor
                        expected[f"send gradient {microbatch} (for stage {cut})"] = tensor
                self.assertEqual(collections.Counter(one["label"] for one in sends), expected)
                share = tokens * dim * size // tensor
                others = [one for one in sends if (one["bytes"], one["bytes_sent"]) != (share, share)]
                self.assertEqual(others, [], f"of {share} bytes each")

    def test_the_tensor_axis_where_gradients_are_apart(self):
        """Of each microbatch, as docs/parallelism.md has it for any schedule: input and weight gradients apart move no
        more than together."""
        tokens, dim, layers, microbatches = 2 * 32, 32, 4, 2
        block = ("attention input", "attention output", "feed-forward input", "feed-forward output",
                 "feed-forward output gradient", "feed-forward input gradient", "attention output gradient",
                 "attention input gradient", "feed-forward input again", "attention input again")
        places = ["embedding rows", "embedding output gradient", "head input", "head softmax of the vocabulary",
                  "head input gradient", *(f"layer {layer} {what}" for layer in range(layers) for what in block)]
        expected = collections.Counter({f"{place}, microbatch {microbatch}": 2  # ranks
                                        for place in places for microbatch in range(microbatches)})
        stages_of = {"1f1b": ([0], [1]), "zb-h2": ([0], [1]), "zb-v": ([0, 3], [1, 2])}  # of a pipeline rank
        for schedule, stages in stages_of.items():
            with self.subTest(schedule):
                self.succeeds(self.train(
                    f"model.layers={layers}", f"train.global_batch_size={2 * microbatches}", "train.micro_batch_size=2",
                    "train.steps=1", "train.evaluate_every_steps=0", "comm.engine=gloo", "parallel.pipeline=2",
                    "parallel.tensor=2", f"parallel.pipeline_schedule={schedule}", ranks=4, flags=("--overwrite",)))
                shown = json.loads(self.succeeds(self.troika("inspect", "runs/small", "--json")).out)
                found = collections.Counter()
                for rank in shown["ranks"]:
                    for one in rank["operations"]:
                        label = one["label"]
                        if one["axis"] != "tensor" or ", microbatch " not in label \
                                or label.startswith("gradient bucket"):  # once a step, of the norms
                            continue
                        place, stage = re.fullmatch(r"(.*) \(stage (\d+)\)", label).groups()
                        self.assertIn(int(stage), stages[rank["rank"] // 2], label)
                        found[place] += 1
                        numbers = 3 * tokens * 8 if "softmax" in label else tokens // 2 * dim * 4
                        self.assertEqual(one["bytes_sent"], numbers, label)
                self.assertEqual(found, expected)

    @slow
    def test_a_slow_stage_is_no_hang(self):
        # The first stage is the embedding alone, done with its forward passes long before the second: were it to send
        # them all at once, the last one would be under way for longer than a transfer may be.
        sets = ("model.layers=4", "parallel.pipeline=2", "parallel.stage_units=[1, 5]", "parallel.pipeline_schedule=gpipe",
                "train.micro_batch_size=1", "train.global_batch_size=4096", "train.steps=1", "comm.timeout_seconds=1")
        done = self.succeeds(self.train(*sets, "train.evaluate_every_steps=0", ranks=2))
        seconds = [json.loads(line)["step_seconds"] for line in
                   (self.run_folder / "metrics.jsonl").read_text().splitlines() if "step_seconds" in line]
        self.assertTrue(seconds, str(done))


if __name__ == "__main__":
    command.main()
