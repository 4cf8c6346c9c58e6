"""`troika verify`: a table, JSON, layouts by hand, a layout that fails, and what it refuses."""

import json
import os
import signal

from command import CommandTest, main, slow, wait_until


class Verify(CommandTest):
    def setUp(self):
        super().setUp()
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()

    def verify(self, *arguments):
        return self.troika("verify", "recipe.toml", *arguments, TMPDIR=str(self.temporary))

    def test_layouts_by_hand(self):
        done = self.succeeds(self.verify("--layouts", "data=2; tensor=2; data=2,zero_stage=3", "--steps", 2))
        lines = done.out.splitlines()
        self.assertIn("3 layouts of up to 2 ranks", lines[0])
        self.assertEqual(lines[-1], "all 3 agree with one rank")
        rows = {line.split()[-1]: line for line in lines[2:-1]}
        self.assertEqual(list(rows), ["data=1", "data=2", "tensor=2", "data=2,zero_stage=3"])
        for row in rows.values():
            self.assertIn("agrees", row)
        self.assertIn("agrees, bits", rows["data=2,zero_stage=3"])
        self.assertFalse((self.folder / "runs").exists())
        self.assertEqual(list(self.temporary.iterdir()), [])

    @slow
    def test_three_and_four_virtual_stages_a_rank(self):
        """More than the two that `auto` tries, with microbatches that the ranks do not divide."""
        pipelines = [f"pipeline=2,pipeline_schedule={schedule},virtual_stages={count}"
                  for schedule in ("interleaved-1f1b", "gpipe") for count in (3, 4)]
        names = [f"{one},micro_batch_size=1" for one in pipelines]
        names += [f"data=2,{pipelines[0]},zero_stage=3,micro_batch_size=1",
                  f"tensor=2,{pipelines[1]},activation_checkpoint=full"]
        for sets in ((), ("--set", "model.tied_embeddings=false")):
            done = self.succeeds(self.verify("--layouts", ";".join(names), "--json", "--steps", 2, "--set",
                                             "model.layers=8", "--set", "train.global_batch_size=7", *sets))
            found = {one["layout"]: one for one in json.loads(done.out)["layouts"]}
            self.assertEqual(set(names) - set(found), set())
            for name in names:
                self.assertTrue(found[name]["agrees"], found[name])
                if sets:  # the same bits as without a pipeline
                    self.assertTrue(found[name]["twin"]["same_bits"], found[name])

    @slow
    def test_several_axes_over_messages(self):
        layouts = ["pipeline=2,pipeline_schedule=zb-v", "data=2,pipeline=2,pipeline_schedule=1f1b,zero_stage=3",
                   "data=2,tensor=2"]
        done = self.succeeds(self.verify("--layouts", "; ".join(layouts), "--json", "--steps", 2, "--set",
                                         "comm.engine=gloo", "--set", "model.layers=4"))
        found = json.loads(done.out)["layouts"]
        self.assertEqual([one["layout"] for one in found if one["agrees"]], [one["layout"] for one in found])
        self.assertEqual(set(layouts) - {one["layout"] for one in found}, set())

    def test_json_and_its_own_choice(self):
        done = self.succeeds(self.verify("--ranks", 2, "--json", "--layouts", "auto", "--set", "model.tied_embeddings=false",
                                         "--set", "model.layers=2", "--set", "parallel.tensor=2",
                                         "--set", "parallel.zero_stage=3", "--set", "parallel.shard=2"))
        self.assertEqual(done.out.count("\n"), 1)
        found = json.loads(done.out)
        self.assertTrue(found["agree"])
        self.assertEqual(found["own_layout"], "tensor=2")  # on one data rank ZeRO cuts nothing
        self.assertNotIn("own_layout_left_out", found)
        self.assertIn(found["own_layout"], [one["layout"] for one in found["layouts"]])
        self.assertEqual(found["layouts"][0]["layout"], "data=1")
        names = " ".join(one["layout"] for one in found["layouts"])
        for part in ("data=2", "tensor=2", "pipeline=2", "zero_stage=3", "zb-h2", "activation_checkpoint=full"):
            self.assertIn(part, names)
        for one in found["layouts"]:
            self.assertTrue(one["agrees"])
            self.assertLessEqual(one["reference"]["of_tolerance"], 1)
            if "pipeline" in one["layout"]:
                self.assertTrue(one["twin"]["same_bits"])

    def test_its_own_layout_that_is_left_out(self):
        own = ("--ranks", 1, "--steps", 1, "--set", "model.layers=2", "--set", "parallel.tensor=2", "--set",
               "parallel.pipeline=2")
        why = ("the recipe's own layout (tensor=2,pipeline=2,pipeline_schedule=1f1b) needs 4 ranks: "
               "--ranks 4")
        lines = self.succeeds(self.verify(*own)).out.splitlines()
        self.assertEqual(lines[1], why)
        self.assertEqual(lines[2].split()[0], "ranks")
        found = json.loads(self.succeeds(self.verify(*own, "--json")).out)
        self.assertEqual((found["own_layout"], found["own_layout_left_out"]), (None, why))
        # A list and `all` do not promise it.
        found = json.loads(self.succeeds(self.verify(*own, "--json", "--layouts", "activation_checkpoint=full")).out)
        self.assertNotIn("own_layout", found)

    def test_a_layout_that_fails(self):
        process = self.start("verify", "recipe.toml", "--layouts", "data=2; data=3", "--steps", 100, "--set",
                             "train.global_batch_size=6", TMPDIR=str(self.temporary))
        wait_until(lambda: list(self.temporary.glob("*/results.jsonl")), "the result of one rank")
        os.kill(process.ranks()[1], signal.SIGKILL)  # in the trial of data=2, at whose end rank 2 waits
        done = process.wait()
        self.assertEqual(done.status, 1, str(done))
        lines = done.out.splitlines()
        rows = {line.split()[-1]: line for line in lines[2:-1] if line.split()[0].isdigit()}
        self.assertEqual(list(rows), ["data=1", "data=2", "data=3"], str(done))
        self.assertIn("FAILED", rows["data=2"])
        self.assertIn("agrees", rows["data=3"])  # in a job of its own
        self.assertIn("FAILED: rank 1 ", done.out)
        self.assertEqual(lines[-1], "1 of 2 does not agree with one rank")
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_a_data_axis_that_is_auto_fills_the_ranks(self):
        done = self.succeeds(self.verify("--layouts", "data=auto", "--ranks", 2, "--steps", 1))
        lines = done.out.splitlines()
        self.assertIn("1 layout of up to 2 ranks against one rank: 1 step each", lines[0])
        self.assertEqual(lines[3].split()[-1], "data=2")
        self.assertEqual(lines[-1], "it agrees with one rank")

    def test_a_list_may_name_more_ranks_than_were_asked_for(self):
        """And has samples for them, if the recipe's own batch does."""
        data = ("--layouts", "data=17", "--steps", 1, "--set")
        done = self.succeeds(self.verify(*data, "train.global_batch_size=20"))
        self.assertEqual(done.out.splitlines()[-1], "it agrees with one rank")
        self.fails(self.verify(*data, "train.global_batch_size=16"), 2, "global_batch_size = 16 is smaller", "of 17 ranks")

    def test_a_failing_reference(self):
        self.fails(self.verify("--layouts", "data=2", "--set", 'data.paths=["none.txt"]'), 3, "none.txt")

    def test_what_it_refuses(self):
        for arguments, words in (
                (("--layouts", "tensro=2"), ("--layouts 'tensro=2'", "did you mean 'tensor'")),
                (("--layouts", "data=2,zero=3"), ("--layouts 'zero=3'", "did you mean 'zero_stage'")),
                (("--layouts", "schedule=zb-v"), ("did you mean 'pipeline_schedule'",)),
                (("--layouts", "tensor=3"), ("--layouts 'tensor=3'", "tensor = 3", "2 heads")),
                (("--layouts", "data=auto", "--ranks", 1), ("no other layout",)),
                (("--layouts", ";"), ("--layouts",)),
                (("--ranks", 0), ("--ranks",)),
                (("--set", "model.dropout=2"), ("dropout",))):
            self.fails(self.verify(*arguments), 2, *words)


if __name__ == "__main__":
    main()
