"""`troika train --dry-run`: memory as predicted and as measured, and what cannot fit refused with what would."""

import json

import command
from command import CommandTest, slow

USAGE = 2
RECIPE = """
name = "small"
[model]
kind = "gpt"
layers = 4
dim = 128
heads = 4
ffn_dim = 256
vocab_size = 512
seq_len = 64
[data]
kind = "random"
[train]
steps = 2
global_batch_size = 16
micro_batch_size = 8
precision = "fp32"
evaluate_every_steps = 2
"""
# Without words, attention and documents.
MLP = """
name = "small"
[model]
kind = "mlp"
input_dim = 256
hidden_dims = [1024, 1024, 1024]
output_dim = 16
[data]
kind = "random"
[train]
steps = 2
global_batch_size = 512
micro_batch_size = 256
precision = "fp32"
evaluate_every_steps = 2
"""
# Measured on real tensors. Large enough that the recorded graph of autograd is small against it.
RESNET = """
name = "small"
[model]
kind = "resnet"
classes = 10
blocks = [1, 1, 1]
width = 32
[data]
kind = "random"
[train]
steps = 2
global_batch_size = 32
micro_batch_size = 8
precision = "fp32"
evaluate_every_steps = 2
"""
LAYOUTS_OF_RESNET = [(1, []), (2, ["parallel.zero_stage=3"]), (2, ["parallel.pipeline=2"]), (2, ["model.norm=sync_batch"])]
# 200 MB.
LARGE = ("model.dim=512", "model.ffn_dim=1024", "model.vocab_size=4096", "train.global_batch_size=4",
         "train.micro_batch_size=2")
# Embeddings that are large against the rest: 150 MB and more.
WORDS = ("model.dim=512", "model.ffn_dim=1024", "model.vocab_size=8192", "model.layers=2", "train.steps=1",
         "train.global_batch_size=2", "train.micro_batch_size=1")
DOCUMENTS = ("data.kind=text", 'data.paths=["text/*.txt"]', "data.pack=isolated", "data.held_out_fraction=0.2",
             "model.seq_len=512", "train.global_batch_size=4", "train.micro_batch_size=2")
LAYOUTS = [  # ranks, overrides
    (1, []),
    (1, ["train.precision=bf16", "train.global_batch_size=2", "train.micro_batch_size=1", "model.layers=2"]),
    (1, ["train.precision=fp64"]),
    (1, ["parallel.activation_checkpoint=full"]),
    (1, ["parallel.activation_checkpoint=selective"]),
    (1, ["model.norm=layernorm", "model.bias=true", "model.activation=gelu", "model.position=learned",
         "model.dropout=0.1", "model.kv_heads=2", "model.tied_embeddings=false"]),
    (2, []),
    (2, ["parallel.zero_stage=1"]),
    (2, ["parallel.zero_stage=2"]),
    (2, ["parallel.zero_stage=3"]),
    (2, ["parallel.tensor=2"]),
    (2, ["parallel.pipeline=2", "train.micro_batch_size=2"]),
    (2, ["parallel.pipeline=2", "train.micro_batch_size=2", "parallel.pipeline_schedule=gpipe"]),
    (2, ["parallel.pipeline=2", "train.micro_batch_size=2", "parallel.pipeline_schedule=zb-h1"]),
    (3, ["parallel.zero_stage=1", "train.micro_batch_size=2"]),
    (4, ["parallel.pipeline=2", "parallel.tensor=2", "train.micro_batch_size=4"]),
    (2, ["parallel.pipeline=2", "train.micro_batch_size=2", "parallel.pipeline_schedule=interleaved-1f1b",
         "parallel.virtual_stages=2", "train.precision=bf16"]),
    (2, ["parallel.pipeline=2", "train.micro_batch_size=2", "parallel.pipeline_schedule=zb-v"]),
    (4, ["parallel.pipeline=2", "train.micro_batch_size=2", "parallel.pipeline_schedule=zb-h2", "parallel.zero_stage=2"]),
    (4, ["parallel.tensor=2", "parallel.zero_stage=3", "train.precision=bf16"]),
    (4, ["parallel.zero_stage=3", "parallel.shard=2", "train.micro_batch_size=4"]),
    (2, ["parallel.zero_stage=3", *LARGE]),
    (2, ["parallel.zero_stage=2", *LARGE, "parallel.cut_gradients=each_microbatch", "train.micro_batch_size=1"]),
    (4, ["parallel.zero_stage=3", "parallel.pipeline=2", "parallel.cut_gradients=each_microbatch", "train.global_batch_size=7",
         "train.micro_batch_size=1", "parallel.pipeline_schedule=interleaved-1f1b", "parallel.virtual_stages=2"]),
    (1, [*LARGE, "train.precision=bf16", "train.steps=1", "train.global_batch_size=1", "train.micro_batch_size=1"]),
    (2, [*WORDS, "comm.engine=shm"]),
    (2, [*WORDS, "comm.engine=gloo", "parallel.zero_stage=1"]),
    (2, [*WORDS, "parallel.zero_stage=2"]),
    (2, [*WORDS, "parallel.pipeline=2"]),
    (2, [*WORDS, "parallel.pipeline=2", "model.tied_embeddings=false", "comm.engine=gloo"]),
    (2, [*WORDS, "parallel.pipeline=2", "model.vocab_size=512", "model.layers=4", "parallel.stage_units=[5,1]"]),
    # Evaluations in larger microbatches than a step has; runs without any; dumps.
    (4, ["train.global_batch_size=8", "train.micro_batch_size=32"]),
    (4, ["train.global_batch_size=8", "train.micro_batch_size=32", "parallel.pipeline=2", "parallel.zero_stage=3"]),
    (1, ["model.vocab_size=20000", "train.evaluate_every_steps=0"]),
    (2, ["model.vocab_size=20000", "data.held_out_fraction=0"]),
    (2, [*WORDS, "debug.dump_steps=[1]"]),
    (2, [*WORDS, "debug.dump_steps=[1]", "parallel.zero_stage=2"]),
    (2, [*WORDS, "debug.dump_steps=[1]", "parallel.tensor=2"]),
    # What other optimisers keep, and need in passing.
    (2, [*WORDS, "optimizer.kind=lamb", "parallel.zero_stage=1"]),
    (1, [*WORDS, "optimizer.kind=sgd", "optimizer.momentum=0.9"]),
    # Two steps: the first makes the buffer of a tied weight at its end, when its peak is over.
    (2, [*WORDS, "train.precision=fp16", "parallel.pipeline=2", "train.steps=2"]),
    # Packed documents that do not see each other: a mask of seq_len x seq_len for each sample.
    (1, [*DOCUMENTS]),
    (2, [*DOCUMENTS, "parallel.tensor=2", "train.precision=bf16"]),
    # One rank of the data axis has a microbatch without samples.
    (4, ["parallel.pipeline=2", "parallel.pipeline_schedule=zb-v", "parallel.zero_stage=3", "train.global_batch_size=5",
         "train.micro_batch_size=1"]),
]
# All but the head; all but a block and the head, over stages; a part of each unit.
HEAD = ("model.tied_embeddings=false", 'optimizer.groups=[{match="model.*", frozen=true}]')
TOP = ("model.tied_embeddings=false",
       'optimizer.groups=[{match="model.layers.3.*"}, {match="lm_head*"}, {match="*", frozen=true}]')
PART = ("model.tied_embeddings=false", 'optimizer.groups=[{match="*mlp*", frozen=true}]')
LAYOUTS_FROZEN = [
    (1, [*HEAD, "model.dim=384", "model.heads=6", "model.ffn_dim=1024", "model.vocab_size=251", "model.seq_len=37",
         "train.global_batch_size=1", "train.micro_batch_size=1"]),
    (2, [*TOP, "parallel.pipeline=2", "train.micro_batch_size=2", "train.precision=bf16"]),
    (2, [*PART, *LARGE, "parallel.zero_stage=3"]),
    (2, [*HEAD, *LARGE, "parallel.zero_stage=2", "train.precision=bf16", "debug.dump_steps=[1]"]),
]
LAYOUTS_OF_MLP = [
    (1, []),
    (2, ["parallel.zero_stage=3", "model.loss=mean_square", "model.activation=gelu"]),
    (2, ["parallel.pipeline=2", "parallel.pipeline_schedule=zb-h1", "parallel.activation_checkpoint=full",
         "train.precision=bf16", "optimizer.kind=sgd", "optimizer.momentum=0.9"]),
]


class DryRun(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def predict(self, *sets, ranks=1, flags=()):
        done = self.succeeds(self.train(*sets, ranks=ranks, flags=("--dry-run", "--json", *flags)))
        self.assertFalse(self.run_folder.exists())
        return json.loads(done.out)

    def check(self, ranks, sets):
        predicted = self.predict(*sets, f"name=not-{ranks}", ranks=ranks)["ranks"]
        done = self.succeeds(self.train(*sets, ranks=ranks, flags=("--json", "--overwrite")))
        measured = json.loads(done.out.splitlines()[-1])["ranks"]
        self.assertEqual(len(predicted), ranks)
        for plan, real in zip(predicted, measured):
            with self.subTest(ranks=ranks, sets=sets, rank=real["rank"]):
                off = abs(plan["peak_tensor_bytes"] - real["peak_tensor_bytes"])
                self.assertLess(off, 0.05 * real["peak_tensor_bytes"], (plan, real))
                self.assertEqual(plan["peak_activations"], real["peak_activations"])

    def check_all(self, layouts):
        for ranks, sets in layouts:
            self.setUp()  # a folder without a run
            self.check(ranks, sets)

    def test_predicted_as_measured(self):
        self.check_all(LAYOUTS[::6])

    @slow
    def test_predicted_as_measured_on_the_other_layouts(self):
        self.check_all(layout for number, layout in enumerate(LAYOUTS) if number % 6)

    def test_predicted_as_measured_where_parameters_are_frozen(self):
        self.check_all(LAYOUTS_FROZEN[:2])

    @slow
    def test_predicted_as_measured_where_parameters_are_frozen_and_cut(self):
        self.check_all(LAYOUTS_FROZEN[2:])

    def test_predicted_as_measured_of_another_kind_of_model(self):
        for ranks, sets in LAYOUTS_OF_MLP:
            self.setUp()
            (self.folder / "recipe.toml").write_text(MLP)
            self.check(ranks, sets)

    def test_losses_of_answers_and_of_values(self):
        (self.folder / "recipe.toml").write_text(MLP)
        for loss in ("binary_cross_entropy", "mean_square"):
            self.assertEqual(self.predict(f"model.loss={loss}")["world_size"], 1)

    def test_predicted_as_measured_of_a_kind_without_meta_kernels(self):
        for ranks, sets in LAYOUTS_OF_RESNET:
            self.setUp()
            (self.folder / "recipe.toml").write_text(RESNET)
            self.check(ranks, sets)

    def test_any_world_on_one_machine(self):
        plan = self.predict("parallel.tensor=2", "parallel.pipeline=4", "parallel.zero_stage=1",
                            "train.global_batch_size=256", "comm.engine=fake", ranks=128,
                            flags=("--ranks-per-node", "8"))
        self.assertEqual(plan["world_size"], 128)
        self.assertEqual([rank["rank"] for rank in plan["ranks"]], list(range(128)))
        self.assertEqual(plan["ranks_per_node"], 8)
        self.assertTrue(plan["fits"])

    def test_any_engine_that_there_is(self):
        self.assertTrue(self.predict("comm.engine=nccl", ranks=2)["fits"])
        self.fails(self.train("comm.engine=gluo", ranks=2, flags=("--dry-run",)), USAGE, "did you mean 'gloo'")

    def test_a_table(self):
        done = self.succeeds(self.train(ranks=4, flags=("--dry-run",)))
        self.assertIn("1-3", done.out)
        self.assertIn("activations", done.out)
        self.assertIn(": it fits", done.out)
        self.assertFalse((self.folder / "runs").exists())

    def test_what_cannot_fit_is_refused_with_the_change_that_would(self):
        """A batch whose activations no machine has, and whose samples one at a time fit any."""
        sets = ("train.global_batch_size=524288", "train.micro_batch_size=524288")
        plan = self.predict(*sets)
        self.assertFalse(plan["fits"])
        self.assertIn("write micro_batch_size = ", plan["advice"])
        done = self.fails(self.train(*sets), USAGE, "out of memory: rank 0 needs", "on this host, which has",
                          "hint: write micro_batch_size = ")
        self.assertFalse((self.folder / "runs").exists())
        size = done.err.split("micro_batch_size = ")[1].split(":")[0]
        self.assertTrue(self.predict(sets[0], f"train.micro_batch_size={size}")["fits"])

    def test_devices_are_judged_by_what_they_are_said_to_have(self):
        on_devices = ("train.device=cuda",)
        whole = self.predict(*on_devices, ranks=2, flags=("--device-memory", "80G"))
        self.assertTrue(whole["fits"])
        needed = whole["devices"][0]["needed_bytes"]
        self.assertEqual(needed, whole["ranks"][0]["peak_tensor_bytes"])
        self.assertEqual([rank["device"] for rank in whole["ranks"]], ["cuda:0", "cuda:1"])
        little = ("--device-memory", str(needed - 1))
        plan = self.predict(*on_devices, ranks=2, flags=little)
        self.assertFalse(plan["fits"])
        self.assertRegex(plan["advice"], "^write activation_checkpoint = ")
        done = self.succeeds(self.train(*on_devices, ranks=2, flags=("--dry-run", *little)))
        self.assertRegex(done.out, "cuda:0 needs .*; it has .*: it does not fit\n")
        # Both on one, which then needs twice as much.
        shared, = self.predict("train.device=cuda:1", ranks=2, flags=("--device-memory", "80G"))["devices"]
        self.assertEqual((shared["device"], shared["needed_bytes"]), ("cuda:1", 2 * needed))
        for size in ("8x", "-1", ""):
            self.fails(self.train(*on_devices, flags=("--dry-run", f"--device-memory={size}")), USAGE, "--device-memory")

    def test_a_device_that_is_not_here_is_not_judged(self):
        done = self.succeeds(self.train("train.device=hpu", ranks=2, flags=("--dry-run",)))
        self.assertRegex(done.out, "hpu:0 needs .*; this machine has no such device, so only the host's memory is judged")
        plan = self.predict("train.device=hpu", ranks=2)
        self.assertIsNone(plan["fits"])
        self.assertEqual([device["memory_bytes"] for device in plan["devices"]], [None, None])

    def test_a_key_that_changes_nothing_is_told_by_whoever_reads_the_recipe(self):
        beyond = "observe.trace_steps=[1000000,1000001]"
        told = [self.succeeds(self.train(beyond, ranks=2, flags=("--dry-run",)))]
        for words in (("mesh", "--ranks", "2"), ("verify", "--ranks", "1"), ("recipe", "check")):
            told.append(self.succeeds(self.troika(*words, "recipe.toml", "--set", beyond)))
        for done in told:
            self.assertIn("[observe] trace_steps reaches beyond train.steps", done.err, str(done))


if __name__ == "__main__":
    command.main()
