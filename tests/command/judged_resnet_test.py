"""Residual networks: PyTorch judges their gradients and running statistics, and layouts that promise bits keep them.

Run with pytest, in an environment with PyTorch.
"""

import pathlib
import shutil
import sys
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from command import CommandTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "judge"))
import dump
import resnet_reference

AGREES, DISAGREES = 0, 1
# 7 samples in microbatches of 2: two data ranks have 4 and 3 of them, three have 3, 2 and 2.
RECIPE = """
name = "small"
[model]
kind = "resnet"
classes = 3
blocks = [1, 1]
width = 4
image_size = 8
[data]
kind = "random"
[train]
steps = 2
global_batch_size = 7
micro_batch_size = 2
precision = "fp64"
deterministic = true
evaluate_every_steps = 2
[optimizer]
kind = "sgd"
lr = 0.05
warmup_steps = 0
[observe]
tensorboard = false
[debug]
dump_steps = [1, 2]
"""
SYNC = "model.norm=sync_batch"
UNEVEN = ("train.global_batch_size=4", "train.micro_batch_size=1")  # three ranks: 2, 1 and 1 microbatches
RECOMPUTE = "parallel.activation_checkpoint=full"
TWO_STAGES = "parallel.pipeline=2"
ZERO_BUBBLE = (TWO_STAGES, "parallel.pipeline_schedule=zb-h1")


class JudgedResnet(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def verdict(self, run, *arguments):
        with mock.patch.object(sys, "argv", ["judge", str(run), *arguments]):
            return resnet_reference.main()

    def trained(self, ranks, *sets):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        return self.run_folder

    def judged(self, ranks, *sets):
        self.assertEqual(self.verdict(self.trained(ranks, *sets)), AGREES)

    def files_of(self, ranks, *sets):
        run = self.trained(ranks, *sets)
        files = [run / "model.safetensors", *sorted((run / "dump").rglob("*.safetensors"))]
        self.assertEqual(len(files), 7)
        figures = [(line["loss"], line["grad_norm"], line.get("held_out_loss")) for line in self.metrics()]
        return {**{str(path.relative_to(run)): path.read_bytes() for path in files}, "metrics": figures}

    def judged_alike(self, reference, *layouts):
        """`reference` and `layouts` are (ranks, *overrides): the first is judged, the others must have its bits."""
        files = self.files_of(*reference)
        self.assertEqual(self.verdict(self.run_folder), AGREES)
        for layout in layouts:
            with self.subTest(layout):
                theirs = self.files_of(*layout)
                self.assertEqual([name for name in files if files[name] != theirs[name]], [])

    def test_one_rank_pipelines_and_recomputation(self):
        self.judged_alike((1,), (1, RECOMPUTE), (2, TWO_STAGES), (2, *ZERO_BUBBLE), (2, TWO_STAGES, RECOMPUTE))

    def test_two_data_ranks_keep_their_bits_under_zero_pipelines_and_recomputation(self):
        self.judged_alike((2,), *((2, f"parallel.zero_stage={stage}") for stage in (1, 2, 3)), (2, RECOMPUTE),
                          (4, "parallel.data=2", *ZERO_BUBBLE, "parallel.zero_stage=1"))

    def test_synchronised_norms(self):
        self.judged_alike((2, SYNC), (2, SYNC, "parallel.zero_stage=3"),
                          (4, SYNC, "parallel.data=2", TWO_STAGES, "parallel.zero_stage=2", RECOMPUTE))

    def test_synchronised_norms_where_ranks_have_fewer_microbatches(self):
        layout = (3, SYNC, *UNEVEN)
        self.judged_alike(layout, (*layout, "parallel.zero_stage=3"), (*layout, RECOMPUTE))

    def test_synchronised_norms_where_the_last_microbatches_have_other_sizes(self):
        self.judged(3, SYNC, "train.global_batch_size=8")  # 2 and 1, 2 and 1, 2

    def test_ranks_without_a_second_microbatch(self):
        self.judged(3, *UNEVEN, "model.image_size=9")

    def test_bottlenecks_behind_the_large_stem(self):
        self.judged(2, "model.block=bottleneck", "model.stem=224x224", "model.image_size=40", "model.blocks=[1, 2]",
                    "train.steps=1", "debug.dump_steps=[1]")

    def test_other_sizes_and_keys(self):
        self.judged(1, "model.channels_last=false", "model.channels=1", "model.blocks=[2, 1, 1]", "model.norm_eps=1e-3",
                    "model.norm_momentum=0.3", "model.image_size=9")

    def test_synchronised_norms_give_the_numbers_of_one_rank_with_the_whole_batch(self):
        """The held-out loss as well, which the running statistics make."""
        whole = ("train.micro_batch_size=7",)
        expected = self.files_of(1, *whole)["metrics"]
        tensors = load_file(self.run_folder / "model.safetensors")
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                found = self.files_of(ranks, SYNC, *whole)["metrics"]
                for own, right in zip(found[-1], expected[-1]):
                    self.assertAlmostEqual(own, right, delta=1e-12 * right)
                for name, value in load_file(self.run_folder / "model.safetensors").items():
                    torch.testing.assert_close(value, tensors[name], rtol=1e-11, atol=1e-13, msg=name)

    def test_narrower_precisions(self):
        # The bounds are some five times what is found; a wrong batch-norm is off by its whole gradient.
        for bound, layout in (("1e-6", ("train.precision=fp32",)), ("1e-6", ("train.precision=fp32", SYNC)),
                              ("0.05", ("train.precision=bf16", SYNC)), ("0.02", ("train.precision=fp16",))):
            with self.subTest(layout):
                self.assertEqual(self.verdict(self.trained(2, *layout), "--tolerance", bound, "--floor", bound), AGREES)

    def test_the_judge_notices(self):
        """Other statistics than the run's, and a wrong number in a file."""
        run = self.trained(2)
        recipe = (run / "recipe.toml").read_text()
        wrong = self.folder / "wrong"
        for right, other in (('norm = "batch"', f'norm = "{SYNC.partition("=")[2]}"'), ("data = 2", "data = 1"),
                             ("micro_batch_size = 2", "micro_batch_size = 3"), ("norm_eps = 1e-5", "norm_eps = 1.1e-5"),
                             ("norm_momentum = 0.1", "norm_momentum = 0.100001")):
            with self.subTest(other):
                self.assertIn(right, recipe)
                shutil.copytree(run, wrong, dirs_exist_ok=True)
                (wrong / "recipe.toml").write_text(recipe.replace(right, other, 1))
                self.assertEqual(self.verdict(wrong), DISAGREES)
        shutil.copytree(run, wrong, dirs_exist_ok=True)
        tensors = load_file(run / "model.safetensors")
        # Means around zero are judged by the deviation of what they are means of.
        for name, error in (("layer2.0.downsample.1.running_mean", 1e-9), ("bn1.running_mean", 1e-8), ("bn1.running_var", 1e-9)):
            with self.subTest(name):
                save_file({**tensors, name: tensors[name] * (1 + error)}, wrong / "model.safetensors")
                self.assertEqual(self.verdict(wrong), DISAGREES)


class SavedResnet(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def saved(self, *sets, ranks=2):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        recipe = dump.load_dump(self.run_folder, 1, kind="resnet").recipe
        return recipe, load_file(self.run_folder / "model.safetensors")

    def test_loads_into_modules_of_pytorch(self):
        for precision, dtype in (("fp64", torch.float64), ("fp32", torch.float32), ("bf16", torch.float32)):
            with self.subTest(precision):
                recipe, tensors = self.saved(f"train.precision={precision}")
                network = resnet_reference.Resnet(recipe["model"])
                network.load_state_dict(tensors)  # strict: the same names and shapes
                self.assertEqual({name: value.dtype for name, value in tensors.items()},
                                 {name: torch.int64 if name.endswith("num_batches_tracked") else dtype
                                  for name in network.state_dict()})
                # 2 steps of 2 microbatches; the first rank counts.
                self.assertEqual(tensors["layer2.0.downsample.1.num_batches_tracked"].item(), 4)
                for norm in ("bn1", "layer1.0.bn2", "layer2.0.downsample.1"):
                    self.assertNotEqual(tensors[f"{norm}.running_mean"].abs().max().item(), 0)
                    self.assertNotEqual((tensors[f"{norm}.running_var"] - 1).abs().max().item(), 0)

    def test_pipelines_save_the_statistics_of_every_stage(self):
        _, expected = self.saved(ranks=1)
        for schedule in ("1f1b", "zb-h1"):
            _, tensors = self.saved("parallel.pipeline=3", f"parallel.pipeline_schedule={schedule}", ranks=3)
            self.assertEqual(tensors.keys(), expected.keys())
            for name, value in tensors.items():
                self.assertTrue(torch.equal(value, expected[name]), name)

    def test_statistics_of_two_ranks_are_averaged(self):
        """After one microbatch a rank, from statistics of 0 and 1: worked out from the images, by the first layer."""
        recipe, tensors = self.saved("train.steps=1", "train.global_batch_size=4", "debug.dump_steps=[1]")
        start = dump.load_dump(self.run_folder, 1, kind="resnet")
        images, momentum = start.batch["images"].double(), recipe["model"]["norm_momentum"]
        halves = torch.nn.functional.conv2d(images, start.parameters["conv1.weight"], padding=1).chunk(2)
        own = [half.transpose(0, 1).flatten(1) for half in halves]  # of each rank: [channels, values]
        means, variances = ([getattr(torch, of)(values, dim=1) for values in own] for of in ("mean", "var"))
        torch.testing.assert_close(tensors["bn1.running_mean"], momentum * sum(means) / 2, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(tensors["bn1.running_var"], 1 - momentum + momentum * sum(variances) / 2, rtol=1e-12,
                                   atol=1e-15)
        self.assertGreater((means[0] - means[1]).abs().max().item(), 1e-3)
