"""`troika simulate schedule`: the closed forms of the papers, the JSON, the drawing, the trace, and what it refuses."""

import json
import pathlib
import re

from command import CommandTest, main

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schedules.md"
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")


class SimulateSchedule(CommandTest):
    def simulate(self, schedule, stages, microbatches, *more, times=(1, 1, 1, 0)):
        words = [word for flag, time in zip(("--forward", "--backward", "--weight", "--communicate"), times)
                 for word in (flag, time)]
        return self.troika("simulate", "schedule", "--schedule", schedule, "--stages", stages,
                           "--microbatches", microbatches, *words, *more)

    def found(self, *arguments, **options):
        done = self.succeeds(self.simulate(*arguments, "--json", **options))
        self.assertEqual(done.out.count("\n"), 1)
        return json.loads(done.out)

    def test_the_closed_forms(self):
        p, m = 8, 16  # all sizes: tests/unit/schedule/simulate_test.cc
        found = self.found("1f1b", p, m)
        self.assertAlmostEqual(found["bubble_makespan"], (p - 1) / (m + p - 1), places=12)
        self.assertAlmostEqual(found["bubble_cost"], (p - 1) / (m + p - 1), places=12)
        found = self.found("zb-h1", p, m)
        self.assertAlmostEqual(found["bubble_makespan"], (p - 1) / (3 * m + p - 1), places=12)
        self.assertAlmostEqual(found["bubble_cost"], (p - 1) / (3 * m + p - 1), places=12)
        self.assertEqual(self.found("zb-h2", p, m)["bubble_cost"], 0)
        found = self.found("zb-v", p, m)
        self.assertEqual(found["bubble_cost"], 0)
        self.assertEqual(found["peak_activations"], p)

    def test_the_json_agrees_with_its_own_actions(self):
        for schedule in SCHEDULES:
            found = self.found(schedule, 4, 6, times=(2, 3, 1.5, 0.25))
            work = 6 * (2 + 3 + 1.5)
            cost = max(rank["last_end"] - rank["first_start"] for rank in found["ranks"])
            self.assertAlmostEqual(found["bubble_cost"], (cost - work) / cost, places=12)
            self.assertAlmostEqual(found["bubble_makespan"], (found["makespan"] - work) / found["makespan"], places=12)
            self.assertEqual(found["peak_activations"], max(rank["peak_activations"] for rank in found["ranks"]))
            self.assertEqual([rank["rank"] for rank in found["ranks"]], [0, 1, 2, 3])
            for rank in found["ranks"]:
                actions = rank["actions"]
                self.assertEqual(rank["first_start"], actions[0]["start"])
                self.assertEqual(rank["last_end"], actions[-1]["end"])
                self.assertAlmostEqual(rank["busy"], sum(one["end"] - one["start"] for one in actions))
                self.assertAlmostEqual(rank["busy"], work)
                for before, after in zip(actions, actions[1:]):
                    self.assertLessEqual(before["end"], after["start"])
                # Activations live from the forward to the gradient of the weights.
                alive = peak = 0
                for one in actions:
                    alive += (one["kind"] == "F") - (one["kind"] in ("W", "BW"))
                    peak = max(peak, alive)
                self.assertEqual(rank["peak_activations"], peak / found["virtual_stages"])
                self.assertEqual(alive, 0)

    def test_virtual_stages(self):
        self.assertEqual(self.found("interleaved-1f1b", 4, 8, "--virtual-stages", 2)["bubble_makespan"], 3 / 19)
        self.assertEqual(self.found("zb-v", 4, 8)["virtual_stages"], 2)
        for asked in (1, 2):  # 1 is the default, as in a recipe, and means its two
            self.assertEqual(self.found("zb-v", 4, 8, "--virtual-stages", asked), self.found("zb-v", 4, 8))
        # A last group that is not full, and fewer microbatches than ranks.
        for microbatches in (3, 10):
            self.found("interleaved-1f1b", 4, microbatches, "--virtual-stages", 3)

    def test_the_drawing_is_plain_text(self):
        done = self.succeeds(self.simulate("zb-h1", 2, 2))
        self.assertEqual(done.out, """\
zb-h1: 2 stages, 2 microbatches; F 1.000, B 1.000, W 1.000, C 0.000 ms

rank 0  F0    F1    ......B0    W0    B1    W1
rank 1  ......F0    B0    F1    B1    W0    W1
F forward, B gradient of the input, W of the weights
The number is the microbatch; . waits; a column is 0.167 ms

rank  first start  last end   span   busy  bubble  peak activations
0           0.000     7.000  7.000  6.000  14.3 %              2.00
1           1.000     7.000  6.000  6.000   0.0 %              2.00
all         0.000     7.000  7.000  6.000  14.3 %              2.00
Times in ms, activations in microbatches. All: the makespan, and what is busy of it on average (bubble_makespan).
The longest span of a rank is 7.000 ms, of which 14.3 % bubble (bubble_cost).
""")
        lines = self.succeeds(self.simulate("1f1b", 16, 300)).out.splitlines()
        self.assertEqual([len(line) for line in lines[2:18]], [100] * 16)  # no terminal: 100 columns

    def test_the_drawings_of_the_documentation(self):
        drawn = re.findall(r"```\n\$ troika (simulate schedule --schedule (\S+) .*)\n([^`]*)```", DOCUMENT.read_text())
        self.assertEqual(tuple(name for _, name, _ in drawn), SCHEDULES)
        for command, name, drawing in drawn:
            self.assertIn("\n" + drawing, self.succeeds(self.troika(*command.split())).out, name)

    def test_the_trace(self):
        path = self.folder / "out.json"
        found = self.found("zb-v", 3, 5, "--trace", path, times=(2, 3, 1, 0.5))
        events = json.loads(path.read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {0: "rank 0", 1: "rank 1", 2: "rank 2"})
        spans = [(event["pid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
        self.assertEqual(spans, [
            (rank["rank"], f"{one['kind']}{one['microbatch']} (stage {one['stage']})", one["start"] * 1000,
             (one["end"] - one["start"]) * 1000)
            for rank in found["ranks"] for one in rank["actions"]])
        self.assertEqual(max(event["args"]["microbatches"] for event in events if event["ph"] == "C"),
                         found["peak_activations"])

    def test_what_it_refuses(self):
        self.fails(self.simulate("zb-h3", 4, 8), 2, "'zb-h3'", "zb-h1")
        self.fails(self.simulate("1f1b", 4, 8, "--virtual-stages", 2), 2, "interleaved-1f1b", "--virtual-stages 1")
        self.fails(self.simulate("zb-h1", 4, 8, "--virtual-stages", 2), 2, "zb-h1", "zb-v")
        self.fails(self.simulate("zb-v", 4, 8, "--virtual-stages", 3), 2, "zb-v", "not 3")
        self.fails(self.simulate("1f1b", 0, 8), 2, "--stages", "0")
        self.fails(self.simulate("1f1b", 4, 0), 2, "--microbatches", "0")
        self.fails(self.simulate("1f1b", 4, "many"), 2, "--microbatches", "many")
        self.fails(self.simulate("1f1b", 1024, 1000), 2, "more than 1000000")
        for times in ((-1, 1, 1, 0), ("nan", 1, 1, 0)):
            self.fails(self.simulate("1f1b", 4, 8, times=times), 2, "--forward", str(times[0]))
        self.fails(self.simulate("1f1b", 4, 8, times=(0, 0, 0, 1)), 2, "nothing to simulate")
        self.fails(self.troika("simulate", "schedule", "--schedule", "1f1b"), 2, "--stages")
        self.fails(self.troika("simulate"), 2, "subcommand")

    def test_a_trace_that_cannot_be_written(self):
        self.fails(self.simulate("1f1b", 2, 2, "--trace", "text"), 2, "text", "folder")
        self.fails(self.simulate("1f1b", 2, 2, "--trace", "nowhere/out.json"), 7, "nowhere")


if __name__ == "__main__":
    main()
