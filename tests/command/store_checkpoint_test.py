"""Checkpoints that lie in an object store, and nowhere else.

Run with pytest, in an environment with pyarrow and moto.
"""

import json
import os
import shutil
import signal
import threading
import urllib.request

import pyarrow.fs

import command
from bucket import VARIABLES, Bucket
from command import wait_until
from going_on import GoingOnTest, recipe_with_checkpoints

USAGE, DATA, CHECKPOINTED = 2, 3, 75
SECONDS = 120
STEPS = 60
KEY = "5e" * 32


class StoredCheckpoints(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(recipe_with_checkpoints(STEPS))
        (self.folder / "temporary").mkdir()
        self.bucket = Bucket(self)
        self.place, self.store = self.bucket.place, self.bucket.store
        self.sets = (f"checkpoint.folder={self.bucket.url(self.place)}",)
        self.variables = {**VARIABLES, "TMPDIR": self.folder / "temporary"}

    def url(self, below="small"):
        return self.bucket.url(f"{self.place}/{below}")

    def files(self):
        selector = pyarrow.fs.FileSelector(f"{self.place}/small", recursive=True, allow_not_found=True)
        return {one.path.removeprefix(f"{self.place}/small/") for one in self.store.get_file_info(selector) if one.is_file}

    def steps_there(self, run=None):
        return sorted(int(name[5:13]) for name in self.files() if name.endswith("manifest.json"))

    def damage(self, step):
        shard = next(name for name in self.files() if name.startswith(f"step-{step:08}/0"))
        with self.store.open_input_stream(f"{self.place}/small/{shard}") as file:
            content = bytearray(file.read())
        content[-1] ^= 1
        with self.store.open_output_stream(f"{self.place}/small/{shard}") as file:
            file.write(bytes(content))

    def begin(self, *sets, ranks=2):
        return self.start(*command.train_arguments((*self.sets, *sets)), "--ranks", ranks, **self.variables)

    def stored(self, *sets, ranks=2, flags=(), **variables):
        return self.train(*self.sets, *sets, ranks=ranks, flags=flags, **{**self.variables, **variables})

    def checkpoint(self, *words, **variables):
        return self.troika("checkpoint", *words, **{**self.variables, **variables})

    def killed(self, step, *sets):
        process = self.begin(*sets)
        self.wait_for_checkpoint(process, step)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)

    def whole(self, *sets):
        self.succeeds(self.train("name=whole", *sets, ranks=2))
        return self.folder / "runs/whole"

    def nothing_is_left_on_this_host(self):
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])
        self.assertFalse((self.run_folder / "checkpoints").exists())

    def test_a_run_that_is_killed_goes_on_elsewhere_with_the_same_bits(self):
        self.whole("parallel.zero_stage=1")
        self.killed(10, "parallel.zero_stage=1")
        shutil.rmtree(self.run_folder)
        done = self.succeeds(self.stored("parallel.zero_stage=1"))
        self.assertRegex(done.err, r"the run's files are fetched with the checkpoint of step \d+ from s3://")
        self.assertRegex(done.err, r"going on from the checkpoint of step \d+ of 60")
        self.expect_same_as("whole")
        self.assertEqual(self.steps_there(), [55, 60])
        self.nothing_is_left_on_this_host()
        # A host that had the run before has older metrics.
        kept = self.folder / "kept"
        shutil.copytree(self.run_folder, kept)
        self.succeeds(self.stored("parallel.zero_stage=1", "train.steps=80", ranks=1, flags=["--resume"]))
        shutil.rmtree(self.run_folder)
        kept.rename(self.run_folder)
        done = self.succeeds(self.stored("parallel.zero_stage=1", "train.steps=90", flags=["--resume"]))
        self.assertIn("going on from the checkpoint of step 80 of 90", done.err)
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, 91)))

    def test_a_kill_in_the_middle_of_an_upload_loses_nothing(self):
        self.whole()
        reached, over = threading.Event(), threading.Event()
        self.addCleanup(over.set)
        for what in (".safetensors", "manifest.json"):
            with self.subTest(what):
                reached.clear()
                over.clear()

                def hold(method, path, what=what):
                    if method in ("PUT", "POST") and "/step-00000020/" in path and path.endswith(what):
                        reached.set()
                        over.wait(SECONDS)

                self.bucket.hook = hold
                process = self.begin()
                self.assertTrue(reached.wait(SECONDS))
                os.kill(process.pid, signal.SIGKILL)
                process.wait(SECONDS)
                self.bucket.hook = None
                self.assertNotIn(20, self.steps_there())
                over.set()
                done = self.succeeds(self.stored())
                self.assertRegex(done.err, r"going on from the checkpoint of step (15|20) of 60")
                self.expect_same_as("whole")
                self.assertEqual(self.steps_there(), [55, 60])
                self.assertEqual({name[:13] for name in self.files()}, {"step-00000055", "step-00000060"})
                self.nothing_is_left_on_this_host()
                self.succeeds(self.checkpoint("verify", "runs/small"))
                shutil.rmtree(self.run_folder)
                self.store.delete_dir_contents(f"{self.place}/small")

    def test_a_damaged_one_is_left_for_the_one_before(self):
        self.whole()
        self.killed(15)
        *_, before, newest = self.steps_there()
        self.damage(newest)
        verified = self.checkpoint("verify", "runs/small")
        self.assertEqual(verified.status, DATA, str(verified))
        self.assertIn(f"step {newest}: unreadable\nstep {before}: whole", verified.out)
        self.assertIn("is damaged: its SHA-256", verified.err)
        done = self.succeeds(self.stored())
        self.assertIn(f"warning: the checkpoint of step {newest} is not used: ", done.err)
        self.assertIn(f"going on from the checkpoint of step {before} of 60", done.err)
        self.expect_same_as("whole")

    def test_commands_take_them_from_there(self):
        self.succeeds(self.stored("model.norm=rmsnorm", "checkpoint.keep=3"))
        listed = self.succeeds(self.checkpoint("list", "runs/small")).out
        self.assertEqual(self.succeeds(self.checkpoint("list", self.url())).out, listed)
        self.assertEqual([line.split()[0] for line in listed.splitlines()], ["step", "60", "55", "50"])
        self.assertIn("step 55: whole", self.succeeds(self.checkpoint("verify", self.url(), "--step", 55)).out)
        nothing = self.checkpoint("list", self.url("nothing"))
        self.assertEqual(nothing.status, DATA, str(nothing))
        self.assertIn("no checkpoint in ", nothing.err)
        self.assertRegex(self.succeeds(self.checkpoint("diff", self.url(), self.url("small/step-00000060"))).out,
                         r"^compared: s3://.*\n\d+ tensors the same, 0 different\n$")
        self.assertEqual(self.checkpoint("diff", self.url(), self.url("small/step-00000055")).status, 1)
        for run, out in (("runs/small", "a"), (self.url(), "b")):
            self.succeeds(self.checkpoint("export", run, out, "--step", 60))
        self.assertEqual(*((self.folder / out / "model.safetensors").read_bytes() for out in "ab"))
        # In other files, of which a run goes on.
        for run, out in (("runs/small", "one/small"), (self.url(), "two/small")):
            done = self.succeeds(self.checkpoint("reshard", run, out, "--step", 55, "--ranks", 1))
            self.assertIn(f"go on with: troika train {out}/recipe.toml", done.out)
            self.assertIn("step 55: whole", self.succeeds(self.checkpoint("verify", out)).out)
            done = self.succeeds(self.train("model.norm=rmsnorm", "checkpoint.keep=3", f"runs_dir={out[:3]}", ranks=2))
            self.assertIn("going on from the checkpoint of step 55 of 60", done.err)
            self.assertEqual((self.folder / out / "model.safetensors").read_bytes(),
                             (self.run_folder / "model.safetensors").read_bytes())
        # As initial values.
        for url in (self.url(), self.url("small/step-00000060")):
            done = self.succeeds(self.train("model.norm=rmsnorm", "name=tuned", "train.steps=1", f"model.from={url}", ranks=2,
                                            flags=["--overwrite"], **self.variables))
            self.assertRegex(done.err, r"initial values of (\d+) of \1 tensors from s3://")
        self.assertEqual(list((self.folder / "temporary").iterdir()), [])

    def test_they_are_encrypted_there(self):
        (self.folder / "key").write_text(KEY)
        key = f"checkpoint.key=file:{self.folder / 'key'}"
        self.whole()
        self.killed(10, key)
        for name in self.files():
            if name.endswith(".safetensors"):
                with self.store.open_input_stream(f"{self.place}/small/{name}") as file:
                    self.assertTrue(file.read().startswith(b"TROIKA CRYPT"), name)
        shutil.rmtree(self.run_folder)
        self.succeeds(self.stored(key))
        self.assertEqual(self.figures(), self.figures(self.folder / "runs/whole"))
        wrong = self.checkpoint("verify", self.url())
        self.assertEqual(wrong.status, DATA, str(wrong))
        self.assertIn("which is not given: no key is given", wrong.err)
        self.succeeds(self.checkpoint("verify", self.url(), TROIKA_KEY=f"file:{self.folder / 'key'}"))

    def test_a_folder_that_is_lost_at_the_end(self):
        self.succeeds(self.stored())
        model = (self.run_folder / "model.safetensors").read_bytes()
        summary = json.loads((self.run_folder / "summary.json").read_text())
        shutil.rmtree(self.run_folder)
        done = self.succeeds(self.stored())
        self.assertIn("done: no step was left", done.err)
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(), model)
        again = json.loads((self.run_folder / "summary.json").read_text())
        for name in ("step", "loss", "steps", "samples", "tokens"):
            self.assertEqual(again[name], summary[name], name)
        self.assertEqual(len(self.metrics()), STEPS)

    def test_a_store_that_fails_for_a_while(self):
        self.whole()
        refused = []

        def busy(method, path):
            if method == "PUT" and "/step-00000010/" in path and len(refused) < 2:
                refused.append(path)
                return "503 Slow Down"

        self.bucket.hook = busy
        done = self.succeeds(self.stored())
        self.assertEqual(len(refused), 2)
        self.assertNotIn("warning", done.err)
        self.expect_same_as("whole")
        # And one that fails for good costs the checkpoint of that step.
        self.bucket.hook = lambda method, path: method == "PUT" and "/step-00000065/" in path and "500 Internal Error"
        done = self.succeeds(self.stored("train.steps=70", "storage.retry_seconds=1", flags=["--resume"]))
        self.assertIn("warning: the checkpoint of step 65 is not there: ", done.err)
        self.assertEqual(self.steps_there(), [60, 70])

    def test_credentials_that_are_wrong(self):
        def credentials_count(start):
            url = f"http://127.0.0.1:{self.bucket.port}/moto-api/reset-auth"
            urllib.request.urlopen(urllib.request.Request(url, data=start, headers={"Content-Type": "text/plain"})).close()

        credentials_count(b"0")
        self.addCleanup(credentials_count, b"inf")
        self.fails(self.stored(), DATA, f"cannot list 's3://{self.place}/small'", "check AWS_ACCESS_KEY_ID")

    def test_a_mirror_beside_them_is_refused(self):
        self.fails(self.stored(f"checkpoint.mirror={self.bucket.url('bucket/copies')}"), USAGE,
                   "checkpoint.mirror", "checkpoint.folder is in a store already")

    def test_two_runs_do_not_write_to_one_place(self):
        """The second finds the first one's mark, whatever its folder: by its process on this host, by its beat from another."""
        process = self.begin(command.ENDLESS, "runs_dir=a")
        wait_until(lambda: process.popen.poll() is not None or self.steps_there(), "a checkpoint")
        mark = f"{self.place}/small/owner/mark"
        text = self.store.open_input_stream(mark).read().decode()
        holder, processes, pid, started, _ = text.splitlines()
        self.assertRegex(holder, rf"^process {pid} on host ")
        refused = self.stored("runs_dir=b")
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertRegex(refused.err, rf"small' is being written by {holder}")
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait(SECONDS).status, CHECKPOINTED)
        self.assertNotIn("owner/mark", self.files())

        def write(beat, elsewhere="of another host"):
            with self.store.open_output_stream(mark) as file:
                file.write(f"process 7 on host b\n{elsewhere}\n7\n{started}\n{beat}\n".encode())

        # Another host's changes as long as its run lives.
        looks = []

        def beat(method, path):
            if method == "GET" and path.endswith("owner/mark"):
                looks.append(path)
                if len(looks) == 2:
                    self.bucket.hook = None
                    write(2)

        write(1)
        self.bucket.hook = beat
        refused = self.stored("runs_dir=b", flags=["--overwrite"])
        self.bucket.hook = None
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("small' is being written by process 7 on host b", refused.err)
        # And does not once it is dead: of this host at once, else after a minute (test_checkpoint_commit: StoreLease).
        write(3, processes)
        done = self.succeeds(self.stored("runs_dir=b", "train.steps=5", flags=["--overwrite"]))
        self.assertNotIn("waiting", done.err)
        self.assertNotIn("owner/mark", self.files())

    def test_a_signal_takes_one(self):
        process = self.begin(command.ENDLESS)
        self.wait_for_checkpoint(process, 5)
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, CHECKPOINTED, str(done))
        self.assertEqual(self.steps_there()[-1], self.metrics()[-1]["step"])
