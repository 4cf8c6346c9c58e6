"""Runs that start from the values of others: [model] from."""

import json
import os
import shutil
import signal

import command
from command import CommandTest, numbers_of, wait_until

DATA = 3
RESNET = """
name = "small"
[model]
kind = "resnet"
image_size = 8
channels = 1
width = 4
blocks = [1]
classes = 4
[data]
kind = "random"
held_out_fraction = 0.2
[train]
steps = 5
global_batch_size = 4
micro_batch_size = 2
precision = "fp32"
[optimizer]
kind = "sgd"
lr = 0.05
warmup_steps = 0
[checkpoint]
every_steps = 2
[debug]
dump_steps = [1]
"""


class InitialValues(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RESNET)

    def first_values(self):
        return numbers_of(self.run_folder / "dump" / "step-1" / "parameters.safetensors")

    def check_values(self, file, but=()):
        expected, found = numbers_of(file), self.first_values()
        for name, values in expected.items():
            if name not in but:
                self.assertEqual(found[name], values, name)

    def tuned(self, source, *sets, ranks=1):
        done = self.succeeds(self.train(f"model.from={source}", *sets, ranks=ranks, flags=["--overwrite"]))
        self.assertIn("initial values of ", done.err)
        return done

    def test_they_are_those_of_a_run_a_checkpoint_or_a_file(self):
        self.succeeds(self.train("name=base", "seed=5", ranks=2))
        base = self.folder / "runs" / "base"
        model = base / "model.safetensors"
        for source in ("runs/base", model):
            for sets, ranks in (((), 1), (("parallel.zero_stage=3",), 2), (("parallel.pipeline=2",), 2)):
                with self.subTest(source=source, sets=sets):
                    self.tuned(source, *sets, ranks=ranks)
                    self.check_values(model)
        self.tuned("runs/base/checkpoints/step-00000004")
        self.assertNotEqual(self.first_values()["fc.weight"], numbers_of(model)["fc.weight"])

    def test_a_network_is_tuned_to_other_classes(self):
        self.succeeds(self.train("name=base", "seed=5"))
        refused = self.train("model.from=runs/base", "model.classes=7", ranks=2)
        self.assertEqual(refused.status, DATA, str(refused))
        for needle in ("'fc.bias' ([4] there, [7] here)", "'fc.weight' ([4, 4] there, [7, 4] here)",
                       'hint: from_ignore = ["fc.*"]'):
            self.assertIn(needle, refused.err)
        done = self.tuned("runs/base", "model.classes=7", 'model.from_ignore=["fc.*"]', ranks=2)
        self.assertRegex(done.err, r"initial values of \d+ of \d+ tensors from runs/base/model.safetensors")
        self.check_values(self.folder / "runs/base/model.safetensors", but=("fc.weight", "fc.bias"))

    def test_what_cannot_be_meant_is_refused(self):
        missing = self.train("model.from=nowhere")
        self.assertEqual(missing.status, DATA, str(missing))
        self.assertIn("[model] from: there is no 'nowhere'", missing.err.replace("'./", "'"))
        star = self.train("model.from=nowhere", 'model.from_rename=[{match = "a*b", to = "c"}]')
        self.assertEqual(star.status, 2, str(star))
        self.assertIn("from_rename: 'a*b' to 'c'", star.err)

    def test_a_run_that_goes_on_does_not_read_them_again(self):
        sets = ("model.from=runs/base", "train.steps=400")
        self.succeeds(self.train("name=base", "seed=5"))
        self.succeeds(self.train("name=whole", *sets, ranks=2))
        process = self.start(*command.train_arguments(sets), "--ranks", 2)
        there = self.run_folder / "checkpoints"
        wait_until(lambda: process.popen.poll() is not None or list(there.glob("step-*/manifest.json")), "a checkpoint")
        self.assertIsNone(process.popen.poll(), "it has ended before it could be stopped")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(self.folder / "runs" / "base")
        done = self.succeeds(self.train(*sets, ranks=2))
        self.assertNotIn("initial values", done.err)
        whole = self.folder / "runs" / "whole"
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((self.run_folder / "summary.json").read_text())["steps"], 400)


if __name__ == "__main__":
    command.main()
