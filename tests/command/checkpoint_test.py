"""Runs that are killed, told to stop or moved to other ranks, and go on from their checkpoints.

TROIKA_TEST_PYTHON, where it is set, is a Python that has the `tensorboard` package.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess

import command
from command import numbers_of, wait_until
from going_on import GoingOnTest, recipe_with_checkpoints

HERE = pathlib.Path(__file__).resolve().parent
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
USAGE, DATA, RANK_DIED, NONFINITE, STORAGE, CHECKPOINTED, INTERRUPTED = 2, 3, 5, 6, 7, 75, 130
SECONDS = 120
STEPS = 300


class Checkpoints(GoingOnTest):
    def setUp(self):
        super().setUp()
        self.recipe()

    def recipe(self, model="", name="small"):
        """A GPT with dropout, AdamW and a best model; or another [model]."""
        text = recipe_with_checkpoints(STEPS).replace("[optimizer]", 'best_metric = "loss"\n[optimizer]')
        if model:
            head, rest = text.split("[model]")
            text = head + model + "[train]" + rest.split("[train]")[1]
        (self.folder / "recipe.toml").write_text(text)

    def start_and_wait_for(self, step, *sets, ranks=2):
        """A run that has a checkpoint of that step, or a later one."""
        process = self.start(*command.train_arguments(sets), "--ranks", ranks)
        self.wait_for_checkpoint(process, step)
        return process

    def killed(self, step, *sets, ranks=2):
        process = self.start_and_wait_for(step, *sets, ranks=ranks)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        self.assertFalse((self.run_folder / "summary.json").exists())

    def test_a_run_that_is_killed_goes_on_with_the_same_bits(self):
        resnet = ('[model]\nkind = "resnet"\nimage_size = 8\nchannels = 1\nwidth = 4\nclasses = 4\n'
                  '[data]\nkind = "random"\nheld_out_fraction = 0.2\n')
        for model, sets in (("", ("parallel.zero_stage=2",)), ("", ("parallel.pipeline=2", "model.layers=2")),
                            (resnet, ())):
            with self.subTest(model=model, sets=sets):
                self.recipe(model)
                self.succeeds(self.train("name=whole", *sets, ranks=2))
                self.killed(10, *sets)
                done = self.succeeds(self.train(*sets, ranks=2))
                self.assertRegex(done.err, r"going on from the checkpoint of step \d+ of 300")
                self.expect_same_as("whole")
                self.check_tensorboard()
                self.assertEqual(self.steps_there(), [295, 300])
                shutil.rmtree(self.folder / "runs")

    def check_tensorboard(self):
        if not TEST_PYTHON:
            return
        read = subprocess.run([TEST_PYTHON, HERE / "tensorboard_readback.py", self.run_folder,
                               self.run_folder / "metrics.jsonl", "--metrics"], capture_output=True, text=True)
        self.assertEqual(read.returncode, 0, read.stdout + read.stderr)

    def test_another_layout_goes_on_with_the_same_numbers(self):
        """fp64 and SGD: AdamW divides noise by noise."""
        fp64 = ("train.precision=fp64", "optimizer.kind=sgd", "model.dropout=0", "model.layers=2",
                "train.best_metric=none")
        self.succeeds(self.train("name=whole", *fp64, ranks=2))
        expected = numbers_of(self.folder / "runs/whole/model.safetensors")
        layouts = (("parallel.zero_stage=3",), ("parallel.tensor=2",), ("parallel.pipeline=2",), ())
        ranks = (2, 2, 2, 1)
        for i, sets in enumerate(layouts):
            with self.subTest(sets):
                self.killed(5, *fp64, *layouts[i - 1], ranks=ranks[i - 1])
                self.succeeds(self.train(*fp64, *sets, ranks=ranks[i]))
                found = numbers_of(self.run_folder / "model.safetensors")
                self.assertEqual(found.keys(), expected.keys())
                for name, values in expected.items():
                    bound = 1e-11 * max(abs(value) for value in values) + 1e-14
                    for one, other in zip(found[name], values):
                        self.assertLessEqual(abs(one - other), bound, name)
                shutil.rmtree(self.run_folder)

    def test_signals_take_one(self):
        self.succeeds(self.train("name=whole", ranks=2))
        for number, status in ((signal.SIGTERM, CHECKPOINTED), (signal.SIGUSR1, CHECKPOINTED),
                               (signal.SIGINT, INTERRUPTED)):
            process = self.start_and_wait_for(5, "checkpoint.keep=1")
            os.kill(process.pid, number)
            done = process.wait(SECONDS)
            self.assertEqual(done.status, status, str(done))
            self.assertEqual(done.error_lines[-1], "hint: the same command goes on from there")
            stopped = self.metrics()[-1]["step"]
            self.assertEqual(self.steps_there(), [stopped])
            self.assertIn(f"step {stopped}: whole", self.succeeds(self.troika("checkpoint", "verify", "runs/small")).out)
            self.succeeds(self.train("checkpoint.keep=1", ranks=2))
            self.expect_same_as("whole")
            shutil.rmtree(self.run_folder)

    def test_one_that_is_written_is_there_while_the_next_step_is_under_way(self):
        process = self.start_and_wait_for(1, "checkpoint.every_steps=1", "debug.sample_seconds=1")
        self.assertEqual([line["step"] for line in self.metrics()], [1])
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        done = self.succeeds(self.train("train.steps=300", ranks=2))
        self.assertIn("going on from the checkpoint of step 1 of 300", done.err)

    def test_one_that_is_written_is_there_where_the_next_step_ends_the_run(self):
        sets = ("checkpoint.every_steps=1", "optimizer.kind=sgd", "optimizer.lr=1e38", "train.grad_clip=0",
                "checkpoint.keep=5")
        for ranks in (1, 2):
            done = self.train(*sets, ranks=ranks, flags=["--overwrite"])
            self.assertEqual(done.status, NONFINITE, str(done))
            last = int(re.search(r" at step (\d+)", done.err)[1]) - 1
            self.assertEqual(self.steps_there(), list(range(1, last + 1)))
            self.assertIn(f"step {last}: whole", self.succeeds(self.troika("checkpoint", "verify", "runs/small")).out)
            again = self.train(*sets, ranks=ranks)
            self.assertEqual(again.status, NONFINITE, str(again))
            self.assertIn(f"going on from the checkpoint of step {last} of 300", again.err)

    def test_two_runs_do_not_write_to_one_folder(self):
        sets = ("checkpoint.folder=checkpoints", command.ENDLESS)
        process = self.start(*command.train_arguments((*sets, "runs_dir=a")), "--ranks", 1)
        there = self.folder / "checkpoints/small"
        wait_until(lambda: process.popen.poll() is not None or list(there.glob("*/manifest.json")), "a checkpoint")
        for more in ((), ("optimizer.lr=0.5",)):
            for flags in ([], ["--overwrite"]):
                refused = self.train(*sets, "runs_dir=b", *more, flags=flags)
                self.assertEqual(refused.status, USAGE, str(refused))
                self.assertRegex(refused.err, r"'checkpoints/small' is being written by process \d+ on host ")
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait(SECONDS).status, CHECKPOINTED)

    def test_a_damaged_one_is_left_for_the_one_before(self):
        self.succeeds(self.train("name=whole", ranks=2))
        self.killed(15)
        # `keep`, and one more where it was killed before the oldest was removed.
        *_, before, newest = self.steps_there()
        shard = next((self.run_folder / "checkpoints" / f"step-{newest:08}").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        verified = self.troika("checkpoint", "verify", "runs/small")
        self.assertEqual(verified.status, DATA, str(verified))
        self.assertIn(f"step {newest}: unreadable\nstep {before}: whole", verified.out)
        self.assertIn("is damaged: its SHA-256", verified.err)
        done = self.succeeds(self.train(ranks=2))
        self.assertIn(f"warning: the checkpoint of step {newest} is not used: ", done.err)
        self.assertIn(f"going on from the checkpoint of step {before} of 300", done.err)
        self.expect_same_as("whole")

    def test_what_leaves_is_the_newest_that_is_whole(self):
        """Not the model of where the run was once stopped."""
        process = self.start_and_wait_for(5)
        process.popen.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        stopped = self.newest()
        self.killed(stopped + 10)
        *_, before, newest = self.steps_there()
        generated = self.succeeds(self.troika("generate", "runs/small", "--prompt", "int", "--tokens", 4))
        self.assertIn("is not finished: its model.safetensors is of where it was last stopped", generated.err)

        def exported(*words):
            done = self.troika("checkpoint", "export", "runs/small", "out", *words)
            self.succeeds(done)
            found = (self.folder / "out/model.safetensors").read_bytes()
            shutil.rmtree(self.folder / "out")
            return found, done.err

        self.assertEqual(exported()[0], exported("--step", newest)[0])
        shard = next((self.run_folder / "checkpoints" / f"step-{newest:08}").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        found, err = exported()
        self.assertIn(f"warning: the checkpoint of step {newest} is not used: ", err)
        self.assertEqual(found, exported("--step", before)[0])
        damaged = self.troika("checkpoint", "export", "runs/small", "out", "--step", newest)
        self.assertEqual(damaged.status, DATA, str(damaged))
        self.assertIn("is damaged: its SHA-256", damaged.err)

    def test_a_finished_run_gets_its_model_again(self):
        sets = ("train.steps=10",)
        self.succeeds(self.train(*sets))
        model = self.run_folder / "model.safetensors"
        content = model.read_bytes()
        self.assertIn("is finished already", self.succeeds(self.train(*sets)).err)
        model.unlink()
        self.succeeds(self.train(*sets))
        self.assertEqual(model.read_bytes(), content)
        (self.run_folder / "metrics.jsonl").unlink()
        done = self.succeeds(self.train("train.steps=20", flags=("--resume",)))
        self.assertIn("metrics.jsonl' is gone: it begins anew behind step 10", done.err)

    def test_a_folder_in_which_nothing_can_be_written_is_told_at_the_start(self):
        refused = self.train("checkpoint.folder=/proc/checkpoints")  # a file system without new files
        self.assertEqual(refused.status, STORAGE, str(refused))
        self.assertIn("checkpoint.folder: no checkpoint can be written: ", refused.err)
        self.assertFalse((self.run_folder / "metrics.jsonl").exists())

    def test_a_run_goes_on_with_other_settings_on_request(self):
        """More steps, another batch, learning rate and precision, and data at the end; nothing else."""
        self.killed(5)
        more = ("train.steps=320", "train.global_batch_size=6", "optimizer.lr=0.005", "train.precision=fp64")
        refused = self.train(*more, ranks=2)
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("another recipe: train.steps was 300 and is 320; train.global_batch_size was 4 and is 6",
                      refused.err)
        self.assertIn("hint: --resume goes on with the new values", refused.err)
        never = self.train("model.layers=2", *more, ranks=2, flags=["--resume"])
        self.assertEqual(never.status, USAGE, str(never))
        self.assertIn("another recipe: model.layers was 1 and is 2", never.err)
        command.write_text(self.folder / "more", 3)
        done = self.succeeds(self.train(*more, 'data.paths=["text/*.txt", "more/*.txt"]', ranks=2, flags=["--resume"]))
        self.assertIn("going on from the checkpoint of step", done.err)
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, 321)))
        summary = json.loads((self.run_folder / "summary.json").read_text())
        went_on = int(done.err.split("checkpoint of step ")[1].split()[0])
        self.assertEqual(summary["samples"], 4 * went_on + 6 * (320 - went_on))
        # And once it is finished, from its last step.
        after = self.succeeds(self.train(*more, 'data.paths=["text/*.txt", "more/*.txt"]', "train.steps=330", ranks=1,
                                         flags=["--resume"]))
        self.assertIn("going on from the checkpoint of step 320 of 330", after.err)
        self.assertEqual(self.metrics()[-1]["step"], 330)
        fewer = self.train(*more, "train.steps=3", 'data.paths=["text/*.txt", "more/*.txt"]', flags=["--resume"])
        self.assertIn("is finished already", self.succeeds(fewer).err)

    def test_checkpoints_stay_whatever_else_is_gone(self):
        self.killed(5)
        for name in ("metrics.jsonl", "recipe.toml"):
            (self.run_folder / name).unlink()
            refused = self.train("optimizer.lr=0.5", ranks=2)
            self.assertEqual(refused.status, USAGE, str(refused))
            self.assertIn("another recipe: optimizer.lr was 0.01 and is 0.5", refused.err)
            self.assertTrue(self.steps_there())
        self.assertIn("going on from the checkpoint of step", self.succeeds(self.train(ranks=2)).err)
        self.assertEqual(self.metrics()[-1]["step"], STEPS)

    def test_other_data_are_taken_on_request(self):
        self.killed(5)
        (self.folder / "text" / "document-3.txt").write_text("another text, of other words\n" * 20)
        refused = self.train(ranks=2)
        self.assertEqual(refused.status, DATA, str(refused))
        self.assertRegex(refused.err, r"the data are not those that the run began with: 'text/document-3.txt' "
                                      r"\(file \d+ of 12\) is \d+ B longer\n")
        gone_on = self.succeeds(self.train(ranks=2, flags=["--resume"]))
        self.assertIn("the data have changed since the run began: 'text/document-3.txt'", gone_on.err)
        self.assertIn("going on from", gone_on.err)

    def test_the_best_stay_in_a_folder_of_its_own(self):
        sets = ("train.steps=60", "checkpoint.keep=1", "checkpoint.keep_best=2", "checkpoint.folder=elsewhere")
        self.succeeds(self.train(*sets, ranks=2))
        self.assertFalse((self.run_folder / "checkpoints").exists())
        held_out = {line["step"]: line["held_out_loss"] for line in self.metrics() if "held_out_loss" in line}
        best = sorted(held_out, key=lambda step: (held_out[step], step))[:2]
        there = sorted(int(path.name[5:]) for path in (self.folder / "elsewhere" / "small").glob("step-*"))
        self.assertEqual(there, sorted({*best, 60}))
        listed = self.succeeds(self.troika("checkpoint", "list", "runs/small")).out
        self.assertIn("elsewhere/small/step-", listed)
        rows = [line.split() for line in listed.splitlines()]
        self.assertEqual(rows[0], ["step", "ranks", "files", "size", "held-out", "loss", "folder"])
        self.assertEqual([row[0] for row in rows if "best" in row], [str(best[0])])
        self.assertIn(f"{held_out[best[0]]:.4f} best ", listed)
        for step in ("best", best[0]):
            self.succeeds(self.troika("checkpoint", "export", "runs/small", f"out-{step}", "--step", step))
        self.assertEqual(*((self.folder / f"out-{step}/model.safetensors").read_bytes() for step in ("best", best[0])))
        missing = self.troika("checkpoint", "export", "runs/small", "out", "--step", 7)
        self.assertEqual(missing.status, DATA, str(missing))
        self.assertIn("no checkpoint of step 7 in 'elsewhere/small'", missing.err)
        self.assertIn(f"there are those of steps {', '.join(map(str, reversed(there)))}", missing.err)
        self.assertEqual(self.troika("checkpoint", "export", "runs/small", "out", "--step", "last").status, USAGE)
        for sets in (("train.evaluate_every_steps=0", "train.best_metric=none"),
                     ("data.held_out_fraction=0", "train.best_metric=none")):
            refused = self.train("checkpoint.keep_best=1", *sets)
            self.assertEqual(refused.status, USAGE, str(refused))
            self.assertIn("keep_best needs", refused.err)

    def test_one_can_be_asked_for(self):
        process = self.start_training("checkpoint.every_steps=0", ranks=2)
        done = self.succeeds(self.troika("checkpoint", "save", "runs/small"))
        self.assertRegex(done.out, r"^runs/small/checkpoints/step-\d{8}\n$")
        listed = self.succeeds(self.troika("checkpoint", "list", "runs/small")).out.splitlines()
        self.assertEqual(listed[0].split()[:4], ["step", "ranks", "files", "size"])
        self.assertEqual(len(listed), 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        self.fails(self.troika("checkpoint", "save", "runs/small"), USAGE, "nothing is training in 'runs/small'")
        self.fails(self.troika("checkpoint", "list", "nowhere"), DATA, "nowhere")
        for command_name in ("verify", "list"):
            self.fails(self.troika("checkpoint", command_name, "text"), DATA, "no checkpoint in")

    def test_a_run_that_is_finished_trains_further(self):
        """From its last step, which is not one of those that a checkpoint is due after."""
        constant = "optimizer.schedule=constant"
        self.succeeds(self.train("name=whole", constant, "train.steps=23", ranks=2))
        self.succeeds(self.train(constant, "train.steps=12", ranks=2))
        self.assertEqual(self.steps_there(), [10, 12])
        done = self.succeeds(self.train(constant, "train.steps=23", ranks=2, flags=["--resume"]))
        self.assertIn("going on from the checkpoint of step 12 of 23", done.err)
        self.expect_same_as("whole")
        self.succeeds(self.train("name=off", "checkpoint.every_steps=0", "checkpoint.every_minutes=0", "train.steps=3"))
        self.assertFalse((self.folder / "runs/off/checkpoints").exists())

    def test_the_copy_is_bounded_on_request(self):
        sets = ("train.steps=20", "optimizer.schedule=constant", "parallel.zero_stage=1")
        self.succeeds(self.train("name=whole", *sets, ranks=2))
        self.succeeds(self.train(*sets, "checkpoint.staging_bytes=30000", ranks=2))
        most, bounded = ([rank["checkpoint_staging_bytes"] for rank in
                          json.loads((self.folder / "runs" / name / "summary.json").read_text())["ranks"]]
                         for name in ("whole", "small"))
        self.assertGreater(min(most), 90_000)
        self.assertGreater(min(bounded), 0)
        self.assertLessEqual(max(bounded), 30_000)
        for step in (15, 20):
            folder = f"checkpoints/step-{step:08}"
            self.succeeds(self.troika("checkpoint", "diff", f"runs/whole/{folder}", f"runs/small/{folder}"))

    def test_one_that_cannot_be_written_costs_a_warning(self):
        """A model fits the largest file that the process may write, and its optimiser beside it does not."""
        most = 150_000
        done = self.succeeds(self.train(
            "train.steps=11", preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))))
        self.assertIn("warning: the checkpoint of step 5 is not there: cannot write", done.err)
        self.assertIn("File too large", done.err)
        self.assertEqual(len(self.metrics()), 11)
        self.assertEqual(self.steps_there(), [])
        self.nothing_half_written_but("model.safetensors", "best.safetensors", "summary.json")

    def nothing_half_written_but(self, *files):
        self.assertFalse([path for path in self.run_folder.rglob("*") if ".tmp" in path.name])
        for file in files:
            self.assertTrue((self.run_folder / file).is_file())


if __name__ == "__main__":
    command.main()
