"""Checkpoints that have copies in an object store, for machines that do not come back.

Run with pytest, in an environment with pyarrow and moto.
"""

import os
import shutil
import signal
import socket

import pyarrow.fs

import command
from bucket import VARIABLES, Bucket
from command import CommandTest, numbers_of, wait_until

USAGE, DATA, STORAGE, CHECKPOINTED = 2, 3, 7, 75
SILENCE_SECONDS = 60
STEPS = ("train.steps=40", "checkpoint.every_steps=10", "checkpoint.keep=2")


class Mirror(CommandTest):
    def setUp(self):
        super().setUp()
        self.bucket = Bucket(self)
        self.place, self.store = self.bucket.place, self.bucket.store

    def url(self, path=None, port=None):
        return self.bucket.url(path or self.place, port)

    def train_with(self, *sets, path=None, port=None, **words):
        steps = [one for one in STEPS if one.split("=")[0] not in {each.split("=")[0] for each in sets}]
        return self.train(f"checkpoint.mirror={self.url(path, port)}", *steps, *sets, **VARIABLES, **words)

    def files(self):
        selector = pyarrow.fs.FileSelector(f"{self.place}/small", recursive=True, allow_not_found=True)
        return {one.path.removeprefix(f"{self.place}/small/") for one in self.store.get_file_info(selector) if one.is_file}

    def steps(self):
        return sorted(int(name[5:13]) for name in self.files() if name.endswith("manifest.json"))

    def start_endless(self):
        sets = (f"checkpoint.mirror={self.url()}", *STEPS[1:], command.ENDLESS)
        return self.start(*command.train_arguments(sets), "--ranks", 2, **VARIABLES)

    def test_a_run_whose_machine_is_gone_goes_on_from_its_copies(self):
        process = self.start_endless()
        wait_until(lambda: process.popen.poll() is not None or len(self.steps()) > 1, "copies of checkpoints")
        self.assertIsNone(process.popen.poll(), process.popen.poll() is not None and str(process.wait()))
        os.kill(process.pid, signal.SIGKILL)
        done = process.wait()
        self.assertLessEqual(len(self.steps()), 3)  # two, and one that was being removed
        newest = self.steps()[-1]
        shutil.rmtree(self.run_folder)
        process = self.start_endless()
        wait_until(lambda: process.popen.poll() is not None or self.steps()[-1] > newest, "a newer copy")
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait()
        self.assertEqual(done.status, CHECKPOINTED, str(done))
        self.assertRegex(done.err, r"the run's folder is not there: the checkpoint of step \d+ is fetched from s3://bucket/test_a_run\w+/small\n")
        self.assertRegex(done.err, r"going on from the checkpoint of step \d+ of ")
        steps = [line["step"] for line in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_run_whose_checkpoints_are_gone_goes_on_from_its_copies(self):
        process = self.start_endless()
        wait_until(lambda: process.popen.poll() is not None or len(self.steps()) > 1, "copies of checkpoints")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        newest = self.steps()[-1]
        shutil.rmtree(self.run_folder / "checkpoints")
        lines = len(self.metrics())
        process = self.start_endless()
        wait_until(lambda: process.popen.poll() is not None or self.steps()[-1] > max(newest, lines), "a newer copy")
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait()
        self.assertEqual(done.status, CHECKPOINTED, str(done))
        self.assertIn(f"the run's checkpoints are not there: the checkpoint of step {newest} is fetched from s3://", done.err)
        self.assertIn(f"going on from the checkpoint of step {newest} of ", done.err)
        steps = [line["step"] for line in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_the_numbers_are_those_of_a_run_that_was_not_interrupted(self):
        self.succeeds(self.train("name=whole", *STEPS, ranks=2))
        self.succeeds(self.train_with(ranks=2))
        self.assertEqual(self.steps(), [30, 40])
        self.store.delete_file(f"{self.place}/small/step-00000040/manifest.json")
        shutil.rmtree(self.folder / "runs/small")
        done = self.succeeds(self.train_with(ranks=2))
        self.assertIn("going on from the checkpoint of step 30 of 40", done.err)
        whole = self.folder / "runs/whole"
        self.assertEqual(numbers_of(self.run_folder / "model.safetensors"), numbers_of(whole / "model.safetensors"))
        self.assertEqual(self.losses(), self.losses(whole))
        # A run of its own has no copies among those of another of the same name.
        before = self.files()
        done = self.succeeds(self.troika("checkpoint", "reshard", "runs/small", "other/small", "--ranks", 1, **VARIABLES))
        self.assertIn('its recipe has checkpoint.mirror = "none": the copies there are those of \'runs/small\'', done.out)
        self.succeeds(self.troika("train", "other/small/recipe.toml", "--set", "train.steps=50", "--resume", **VARIABLES))
        self.assertTrue((self.folder / "other/small/checkpoints/step-00000050/manifest.json").is_file())
        self.assertEqual(self.files(), before)

    def test_a_copy_that_is_damaged_is_left_for_the_one_before(self):
        self.succeeds(self.train_with(ranks=2))
        shard = next(name for name in self.files() if name.startswith("step-00000040/") and name.endswith(".safetensors"))
        with self.store.open_output_stream(f"{self.place}/small/{shard}") as file:
            file.write(b"nothing")
        shutil.rmtree(self.folder / "runs/small")
        done = self.succeeds(self.train_with(ranks=2))
        self.assertIn("warning: the copy of the checkpoint of step 40 is not used: ", done.err)
        self.assertIn("going on from the checkpoint of step 30 of 40", done.err)

    def test_a_store_that_is_not_there_costs_a_warning(self):
        done = self.succeeds(self.train_with("name=other", path="nothing/runs", flags=("--overwrite",)))
        self.assertIn("is not in its mirror: cannot write 's3://nothing/runs/other/step-", done.err)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            done = self.train_with("name=silent", "train.steps=1", "storage.retry_seconds=2", port=silent.getsockname()[1])
        self.assertEqual(done.status, STORAGE, str(done))
        self.assertIn(f"cannot list 's3://{self.place}/silent'", done.err)
        self.assertLess(done.seconds, SILENCE_SECONDS)

    def test_a_path_is_no_mirror(self):
        self.fails(self.train("checkpoint.mirror=copies"), USAGE, "checkpoint.mirror", "is no URL", "checkpoint.folder takes a path")
        self.assertFalse((self.folder / "copies").exists())
