"""`troika simulate sync`: real gradients under a virtual clock, against real runs and closed forms."""

import json
import xml.etree.ElementTree as xml

from command import UNIT_OF_TIME, CommandTest, main, numbers_of

USAGE = 2
# The identities hold in fp64, with SGD, and targets of equal weight.
EXACT = ("train.precision=fp64", "data.kind=random", "optimizer.kind=sgd", "optimizer.momentum=0.9", "train.steps=6",
         "model.layers=2", "train.global_batch_size=12")
WORKERS = 3
RATE, LATENCY, PASS = 25e6, 0.005, 0.25
LINK = ("--link", "200Mbit/s 5ms", "--pass-seconds", PASS)


class SimulateSync(CommandTest):
    def simulate(self, *flags, sets=(), workers=WORKERS, syncs=("kind=server",)):
        words = [word for flag, each in (("--set", sets), ("--sync", syncs)) for one in each for word in (flag, one)]
        return self.troika("simulate", "sync", "recipe.toml", "--workers", workers, *words, *flags)

    def found(self, *flags, **options):
        done = self.succeeds(self.simulate("--json", *flags, **options))
        self.assertEqual(done.out.count("\n"), 1)
        return json.loads(done.out)["settings"]

    def values(self):
        """The number of values of the model of EXACT."""
        self.succeeds(self.train("name=one", *EXACT, "train.steps=1"))
        return sum(len(one) for one in numbers_of(self.folder / "runs/one/model.safetensors").values())

    def test_the_same_numbers_come_again(self):
        syncs = ("kind=server staleness=any", "kind=local every_steps=2", "kind=gossip")
        flags = ("--json", "--speeds", "lognormal(1, 0.5)", *LINK)
        one = self.succeeds(self.simulate(*flags, syncs=syncs)).out
        self.assertEqual(self.succeeds(self.simulate(*flags, syncs=syncs)).out, one)
        other = self.succeeds(self.simulate(*flags, "--seed", 1, syncs=syncs)).out
        for mine, its in zip(json.loads(one)["settings"], json.loads(other)["settings"]):
            self.assertNotEqual(mine["seconds"], its["seconds"])

    def test_losses_are_those_of_a_real_run(self):
        """Without staleness, and of kinds that wait for each other, virtual times change nothing."""
        settings = {"server": ("kind=server",), "two": ("kind=server", "servers=2"),
                    "change": ("kind=server", "servers=2", "local_steps=2"), "all": ("kind=all_reduce",),
                    "local": ("kind=local", "every_steps=2", "island=1"),
                    "diloco": ("kind=local", "every_steps=2", "outer=nesterov", "start_after=1", "island=1"),
                    "gossip": ("kind=gossip", "island=1"), "ring": ("kind=gossip", "island=1", "topology=ring", "overlap=false")}
        sets = (*EXACT, "train.grad_clip=0.05")
        simulated = self.found("--speeds", "lognormal(1, 0.5)", *LINK, sets=sets, syncs=map(" ".join, settings.values()))
        self.assertEqual(len(simulated), len(settings))
        for (name, keys), its in zip(settings.items(), simulated):
            with self.subTest(name):
                self.succeeds(self.train(f"name={name}", *sets, *(f"sync.{key}" for key in keys), ranks=WORKERS))
                real = self.metrics(self.folder / "runs" / name)
                self.assertEqual(len(real), 6)
                self.assertEqual([step["step"] for step in its["steps"]], [line["step"] for line in real])
                for step, line in zip(its["steps"], real):
                    self.assertEqual("held_out_loss" in step, "held_out_loss" in line)
                    # Elsewhere a run tells the loss of one island.
                    for key in ("loss", "held_out_loss") if name in ("server", "two", "change", "all") else ("held_out_loss",):
                        if key in line:
                            self.assertAlmostEqual(step[key], line[key], 10, (key, step))

    def test_bytes_and_times_are_the_formulas(self):
        n, steps = self.values(), 6
        found = self.found(*LINK, "--unevenness", 0, sets=EXACT,
                           syncs=("kind=server", "kind=server servers=2 staleness=any", "kind=all_reduce", "kind=local every_steps=3",
                                  "kind=gossip topology=ring overlap=false"))
        server, two, reduced, local, gossip = found
        for one in (server, two):
            self.assertEqual(one["sent_bytes"], steps * WORKERS * n * 8)
            self.assertEqual(one["received_bytes"], one["sent_bytes"])
        # All gradients are one bucket, which has some padding.
        padded = reduced["sent_bytes"] / (steps * 2 * (WORKERS - 1) * 8)
        self.assertTrue(n <= padded < 1.01 * n, (n, padded))
        self.assertEqual(local["sent_bytes"], 2 * 2 * (WORKERS - 1) * (n + 1) * 8)
        self.assertEqual(gossip["sent_bytes"], steps * WORKERS * 2 * n * 8)
        # Samples and values through the server's link, which all share; the pass; gradients; reports; sums, and their use.
        through = n * 8 * WORKERS / RATE
        self.assertAlmostEqual(server["seconds"], LATENCY + steps * (10 * LATENCY + 2 * through + PASS), 9)

        def reduction(values):
            self.assertGreater((WORKERS - 1) * values * 8, 256 << 10)  # so it goes in two steps
            return 3 * LATENCY + 2 * (WORKERS - 1) / WORKERS * values * 8 / RATE

        self.assertAlmostEqual(reduced["seconds"], steps * (PASS + reduction(padded)), 9)
        # All meet before they exchange.
        self.assertAlmostEqual(local["seconds"], steps * PASS + 2 * (2 * LATENCY + reduction(n + 1)), 9)
        self.assertAlmostEqual(gossip["seconds"], steps * (PASS + 2 * LATENCY + 2 * n * 8 / RATE), 9)
        # Beside the steps, replicas that differ average before each evaluation.
        evaluations = sum("held_out_loss" in step for step in local["steps"])
        self.assertGreater(evaluations, 0)
        for one in (local, gossip):
            self.assertAlmostEqual(one["outside_seconds"], evaluations * reduction(n), 9)
        self.assertEqual([one["outside_seconds"] for one in (server, two, reduced)], [0, 0, 0])
        self.assertAlmostEqual(reduced["waiting"], 1 - steps * PASS / reduced["seconds"], 9)

    def test_equal_workers_are_each_others_staleness(self):
        """Between a pull and its push each of the others pushes about once."""
        found, bounded = self.found("--speeds", "uniform(0.98, 1.02)", "--pass-seconds", PASS, workers=8,
                                    sets=("train.steps=40", "train.global_batch_size=8"),
                                    syncs=("kind=server staleness=any", "kind=server staleness=1"))
        self.assertLess(abs(found["staleness_mean"] - 7), 0.5)
        self.assertEqual(sum(found["staleness"].values()), 40 * 8)
        self.assertEqual({step["updates"] for step in found["steps"]}, {8})
        self.assertLess(bounded["staleness_max"], 16)

    def test_a_slow_worker_trains_on_less(self):
        any_of_them, waiting, gossip = self.found(
            "--speeds", "list(1, 1, 0.2)", "--pass-seconds", 1, sets=("train.steps=44", "train.global_batch_size=3"),
            syncs=("kind=server staleness=any", "kind=server", "kind=gossip"))
        passes = [worker["passes"] for worker in any_of_them["workers"]]
        self.assertEqual(sum(passes), 44 * WORKERS)
        self.assertLess(abs(passes[0] / passes[2] - 5), 0.5)
        # 11 passes in 5 s, against 3.
        self.assertEqual([worker["passes"] for worker in waiting["workers"]], [44] * 3)
        self.assertAlmostEqual(waiting["seconds"], 44 * 5, 6)
        self.assertLess(abs(any_of_them["seconds"] - 44 * 3 * 5 / 11), 5)
        self.assertGreater(gossip["seconds"], 44 * 5 - 1)

    def test_a_setting_that_diverges_says_so_beside_the_others(self):
        flags, options = ("--pass-seconds", 1), {"sets": ("optimizer.lr=1e30", "train.steps=20", "train.on_nonfinite=stop")}
        one, other = self.found(*flags, syncs=("kind=server staleness=any", "kind=local every_steps=1"), **options)
        for each in (one, other):
            self.assertIn("not finite", each["failure"])
            self.assertLess(len(each["steps"]), 20)
        done = self.succeeds(self.simulate(*flags, syncs=("kind=server",), **options))
        self.assertRegex(done.out, "kind=server ended early: .* not finite")

    def test_workers_join_and_leave(self):
        found, = self.found("--pass-seconds", 1, "--join", 3.5, "--leave", "0@6.5", workers=1, syncs=("kind=server staleness=any",),
                            sets=("train.steps=12", "train.global_batch_size=2"))
        first, joined = found["workers"]
        self.assertEqual((first["passes"], first["left"], joined["joined"]), (7, 7, 3.5))
        self.assertEqual(joined["passes"], 5)
        self.assertAlmostEqual(found["waiting"], 0, 9)

    def test_the_table_and_the_plot(self):
        done = self.succeeds(self.simulate("--plot", "losses.svg", syncs=("kind=all_reduce", "kind=server staleness=any")))
        self.assertRegex(done.err, r"a pass of 1 samples takes [0-9.]+ s here: --pass-seconds [0-9.]+ ")
        self.assertIn("3 workers, speeds constant(1)", done.out)
        self.assertRegex(done.out, rf"(?m)^kind=server staleness=any( +\S+)+ {UNIT_OF_TIME}( |$)")
        lines = [one for one in xml.parse(self.folder / "losses.svg").iter() if one.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2)
        # The recipe's own where none is named.
        self.assertRegex(self.succeeds(self.simulate(syncs=())).out, r"(?m)^kind=all_reduce ")

    def test_bad_input(self):
        for flags, options, needles in (
                (("--speeds", "fast"), {}, ("--speeds: 'fast'",)),
                (("--speeds", "list(1, 1)"), {}, ("2 speeds for 3 workers",)),
                (("--link", "200"), {}, ("--link: '200'",)),
                (("--pass-seconds", 0), {}, ("--pass-seconds",)),
                (("--plot", "text"), {}, ("--plot: 'text' is a folder",)),
                (("--join", 0), {}, ("--join:", "--workers")),
                (("--join", 5, "--leave", "4@9"), {}, ("--leave: '4@9'", "they are 0 to 3")),
                (("--leave", "1@9"), {"syncs": ("kind=gossip",)}, ("workers come and go only with [sync] kind = \"server\"",)),
                ((), {"workers": 0}, ("--workers",)),
                ((), {"workers": 5}, ("global_batch_size = 4 is less than 5 workers",)),
                ((), {"syncs": ("kind=none",)}, ("'none' is not one of all_reduce",)),
                ((), {"syncs": ("staleness=any",)}, ("names no kind",)),
                ((), {"syncs": ("server",)}, ("'server' is not KEY=VALUE",)),
                ((), {"syncs": ("kind=local fragments=2",)}, ("fragments above 1",)),
                ((), {"syncs": ("kind=gossip island=2",)}, ("an island of its own",)),
                ((), {"sets": ("compress.kind=int8",), "syncs": ("kind=all_reduce",)}, ("[compress]",)),
                ((), {"sets": ("parallel.tensor=2",), "syncs": ("kind=all_reduce",)}, ("the whole model",))):
            with self.subTest(flags=flags, **options):
                self.fails(self.simulate(*flags, **options), USAGE, *needles)


if __name__ == "__main__":
    main()
