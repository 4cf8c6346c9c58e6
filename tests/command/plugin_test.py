"""Kinds of models in libraries of users: plugin_test.py EXAMPLE_LIBRARY SCORER_LIBRARY

They train on every layout that their units allow, with the same bits, and a library that does not fit is refused by name.
"""

import pathlib
import shutil
import sys

from command import CommandTest, main

EXAMPLE, SCORER = map(pathlib.Path, sys.argv[1:3])
USAGE = 2
COMMON = """
[data]
kind = "random"
[train]
steps = 3
global_batch_size = 8
micro_batch_size = 2
precision = "fp64"
evaluate_every_steps = 3
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 0
[observe]
tensorboard = false
[debug]
dump_steps = [1]
"""
MIXER = f"""
name = "small"
[model]
kind = "plugin"
library = "{EXAMPLE}"
[model.options]
blocks = 3
width = 8
dropout = 0.25
""" + COMMON
SCORING = f"""
name = "small"
[model]
kind = "plugin"
library = "{SCORER}"
options = {{ width = 6 }}
""" + COMMON


class Plugins(CommandTest):
    def trained(self, ranks, *sets):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        return (self.run_folder / "model.safetensors").read_bytes()

    def losses(self):
        return [line["loss"] for line in self.metrics() if "loss" in line]

    def test_layouts_of_the_same_data_ranks_give_the_same_bits(self):
        (self.folder / "recipe.toml").write_text(MIXER)
        alone = self.trained(1)
        self.assertEqual(self.trained(2, "parallel.pipeline=2"), alone)
        self.assertEqual(self.trained(1, "parallel.activation_checkpoint=full"), alone)
        two = self.trained(2)
        for sets in (["parallel.zero_stage=3"], ["parallel.zero_stage=1"]):
            self.assertEqual(self.trained(2, *sets), two, sets)
        self.assertEqual(self.trained(4, "parallel.zero_stage=3", "parallel.pipeline=2"), two)

    def test_other_data_ranks_give_the_same_numbers(self):
        (self.folder / "recipe.toml").write_text(MIXER)
        self.trained(1, "model.options.dropout=0.0")
        alone = self.losses()
        self.trained(2, "model.options.dropout=0.0")
        self.assertEqual(len(alone), 3)
        for own, other in zip(alone, self.losses()):
            self.assertAlmostEqual(own, other, delta=1e-10)

    def test_a_loss_of_its_own(self):
        (self.folder / "recipe.toml").write_text(SCORING)
        self.fails(self.train("model.loss=mean_square"), USAGE, "the loss of its plug-in alone")
        self.trained(1)
        alone = self.losses()
        self.trained(2)
        for own, other in zip(alone, self.losses()):
            self.assertAlmostEqual(own, other, delta=1e-10)

    def test_narrower_precisions_compute_with_autocast(self):
        (self.folder / "recipe.toml").write_text(MIXER)
        found = {}
        for precision in ("fp32", "bf16", "fp16"):
            self.trained(2, f"train.precision={precision}", "model.options.dropout=0.0")
            found[precision] = self.losses()
        for precision in ("bf16", "fp16"):
            for own, right in zip(found[precision], found["fp32"]):
                self.assertAlmostEqual(own, right, delta=0.05)
        self.assertNotEqual(found["bf16"], found["fp32"])

    def test_the_recipe_of_a_run_has_every_key(self):
        (self.folder / "recipe.toml").write_text(MIXER)
        self.trained(1, "model.options.width=10")
        written = (self.run_folder / "recipe.toml").read_text()
        self.assertIn("options = { image_size = 16, patch_size = 4, width = 10, blocks = 3, classes = 10, dropout = 0.25 }", written)

    def test_its_run_is_used_from_any_folder(self):
        shutil.copy(SCORER, self.folder / "libown.so")
        (self.folder / "recipe.toml").write_text(SCORING.replace(str(SCORER), "libown.so"))
        self.trained(1)
        far = self.folder / "far"
        far.mkdir()
        samples = ["--samples", 5, "--side", "train"]
        self.succeeds(self.troika("evaluate", self.run_folder, *samples, folder=far))
        (self.folder / "libown.so").rename(far / "libmoved.so")
        gone = self.troika("evaluate", self.run_folder, *samples, folder=far)
        self.assertEqual(gone.status, USAGE, str(gone))
        self.assertIn(f"there is no file '{self.folder / 'libown.so'}'", gone.err)
        moved = ["--set", "model.library=libmoved.so"]
        self.succeeds(self.troika("evaluate", self.run_folder, *samples, *moved, folder=far))

    def test_a_dry_run(self):
        (self.folder / "recipe.toml").write_text(MIXER)
        done = self.train("parallel.pipeline=2", ranks=2, flags=["--dry-run"])
        self.succeeds(done)


class BadPlugins(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(MIXER)

    def refused(self, *parts, sets=()):
        self.fails(self.train(*sets, ranks=2), USAGE, *parts)
        self.assertFalse((self.folder / "runs").exists())

    def changed(self, old, new):
        """The example's library with other bytes of the same length."""
        content = EXAMPLE.read_bytes()
        self.assertIn(old, content)
        self.assertEqual(len(old), len(new))
        (self.folder / "libother.so").write_bytes(content.replace(old, new))
        return ["model.library=libother.so"]

    def test_keys_of_a_plug_in(self):
        (self.folder / "recipe.toml").write_text(MIXER.replace("width = 8", "widht = 8"))
        self.refused("recipe.toml:8: [model] options: unknown key 'widht'; did you mean 'width'?", "options has image_size, patch_size, width")
        (self.folder / "recipe.toml").write_text(MIXER.replace("width = 8", "width = 1"))
        self.refused("recipe.toml:8: [model] options.width: 1 is out of range: 2 to 8192")
        (self.folder / "recipe.toml").write_text(MIXER.replace("width = 8", 'width = "wide"'))
        self.refused('recipe.toml:8: [model] options.width: expected integer, found string "wide"')
        (self.folder / "recipe.toml").write_text(MIXER)
        self.refused("--set model.options.blocks=0: [model] options.blocks: 0 is out of range", sets=["model.options.blocks=0"])
        self.refused("[model] an image of 16 pixels has no whole number of patches of 5", sets=["model.options.patch_size=5"])
        self.refused("pipeline = 8 with", "model has 5 layers", sets=["parallel.pipeline=8"])
        (self.folder / "recipe.toml").write_text(SCORING.replace("width = 6", ""))
        self.refused("recipe.toml:6: [model] options: missing required key 'width'")
        (self.folder / "recipe.toml").write_text(SCORING.replace("options = { width = 6 }", ""))
        self.refused("options: missing required key 'width'")

    def test_what_a_plug_in_throws(self):
        (self.folder / "recipe.toml").write_text(SCORING)
        self.refused("--set model.options.fails=validate: [model] no such luck", sets=["model.options.fails=validate"])
        self.refused("unit 'scorer' takes 'groups', which neither a unit before it nor the sample has",
                     "the names so far are values, group, targets", sets=["model.options.fails=units"])

        self.refused("libscorer_plugin.so' throws: no std::exception", sets=["model.options.fails='validate number'"])
        self.refused("two units are called 'scorer'", sets=["model.options.fails=names"])

    def test_what_its_modules_throw_before_a_run(self):
        (self.folder / "recipe.toml").write_text(SCORING)
        for fails, message in (("module", "its module throws: no room"), ("forward", "forward() throws: not today"),
                               ("number", "forward() throws: no std::exception")):
            self.refused("recipe.toml:5: [model]", f"libscorer_plugin.so': unit 'scorer': {message}\n", sets=[f"model.options.fails={fails}"])
        self.refused("libscorer_plugin.so': unit 'scorer' gives [2, 6] as 'score', not [2, 1]", sets=["model.options.fails=shape"])

    def test_what_its_modules_throw_in_a_run(self):
        (self.folder / "recipe.toml").write_text(SCORING)
        self.fails(self.train("model.options.fails='third pass'"), USAGE, "unit 'scorer': forward() throws: tired")

    def test_a_library_that_is_not_there(self):
        self.refused("[model] there is no file 'libmine.so'", sets=["model.library=libmine.so"])
        self.refused("there is no file '/tmp'", sets=["model.library=/tmp"])

    def test_a_library_that_is_no_plug_in(self):
        (self.folder / "libtext.so").write_text("no library")
        self.refused("'libtext.so' is no plug-in for models: it has no TROIKA_MODEL_PLUGIN", sets=["model.library=libtext.so"])
        self.refused("cannot load 'libother.so'", "undefined symbol: troika_model_plugin",
                     sets=self.changed(b"\0troika_model_plugin\0", b"\0troika_model_plugyn\0"))
        (self.folder / "libhalf.so").write_bytes(EXAMPLE.read_bytes()[: EXAMPLE.stat().st_size // 2])
        self.refused("'libhalf.so' is cut short", sets=["model.library=libhalf.so"])

    def test_a_plug_in_of_another_build(self):
        for key, what in ((b"troika=", "troika"), (b" libtorch=", "LibTorch"), (b" library=", "the C++ library"),
                          (b" interface=", "headers of troika with the interface")):
            mark = b"troika-model-plugin: "
            content = EXAMPLE.read_bytes()
            at = content.index(key, content.index(mark) + len(mark)) + len(key)
            self.refused(f"'libother.so' was built for {what} X", "build it again with the troika that loads it",
                         sets=self.changed(content[content.index(mark): at + 1], content[content.index(mark): at] + b"X"))


if __name__ == "__main__":
    main(argv=sys.argv[:1])
