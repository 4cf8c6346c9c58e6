"""Checkpoints and models that are encrypted at rest, with [checkpoint] key."""

import json
import os
import shutil
import signal

import command
from going_on import GoingOnTest, recipe_with_checkpoints, write_manifest

USAGE, DATA = 2, 3
SECONDS = 120
STEPS = 60
KEY, OTHER = "5e" * 32, "7a" * 32


class Encryption(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(recipe_with_checkpoints(STEPS))
        (self.folder / "key").write_text(KEY + "\n")
        (self.folder / "other").write_text(OTHER + "\n")
        self.key = f"checkpoint.key=file:{self.folder / 'key'}"

    def plain_texts(self, run=None):
        """The safetensors files of the run that are not encrypted."""
        return [str(path) for path in (run or self.run_folder).rglob("*.safetensors")
                if not path.read_bytes().startswith(b"TROIKA CRYPT")]

    def refuses(self, done, status, needle):
        """Beside a run that is finished, whose model is there."""
        self.assertEqual(done.status, status, str(done))
        self.assertIn(needle, done.err)
        return done

    def test_a_run_that_is_killed_goes_on(self):
        self.succeeds(self.train("name=whole", ranks=2))
        process = self.start(*command.train_arguments([self.key]), "--ranks", 2)
        self.wait_for_checkpoint(process, 10)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        self.succeeds(self.troika("checkpoint", "verify", "runs/small"))
        done = self.succeeds(self.train(self.key, ranks=2))
        self.assertRegex(done.err, r"going on from the checkpoint of step \d+ of 60")
        self.assertEqual(self.plain_texts(), [])
        self.assertEqual(self.figures(), self.figures(self.folder / "runs/whole"))
        self.succeeds(self.troika("checkpoint", "diff", "runs/small", "runs/whole"))
        # What leaves is plain, and the same.
        generated = [self.succeeds(self.troika("generate", f"runs/{name}", "--prompt", "int", "--tokens", 8)).out
                     for name in ("small", "whole")]
        self.assertEqual(*generated)
        for name in ("small", "whole"):
            self.succeeds(self.troika("checkpoint", "export", f"runs/{name}", f"out/{name}"))
        self.assertEqual(*((self.folder / "out" / name / "model.safetensors").read_bytes() for name in ("small", "whole")))
        # Another number of files, and of ranks.
        self.succeeds(self.troika("checkpoint", "reshard", "runs/small", "runs/packed", "--ranks", 1))
        self.assertEqual(self.plain_texts(self.folder / "runs/packed"), [])

    def test_another_key_or_none(self):
        self.succeeds(self.train(self.key, "checkpoint.keep=1", ranks=1))
        shutil.copytree(self.run_folder, self.folder / "moved")
        (self.folder / "moved/recipe.toml").unlink()
        newest = self.folder / "moved/checkpoints" / f"step-{self.newest():08}"
        missing = self.refuses(self.troika("checkpoint", "diff", newest, newest), DATA, "is encrypted with the key ")
        self.assertIn("TROIKA_KEY=file:/PATH", missing.err)
        self.assertNotIn(KEY[:16], missing.err)
        self.refuses(self.troika("checkpoint", "diff", newest, newest, TROIKA_KEY=f"file:{self.folder / 'other'}"),
                     DATA, f"which is not given: TROIKA_KEY = 'file:{self.folder / 'other'}' has the key ")
        right = {"TROIKA_KEY": f"file:{self.folder / 'key'}"}
        self.succeeds(self.troika("checkpoint", "diff", newest, newest, **right))
        # The same file as initial values of another run.
        begin = (f"model.from={newest}", "name=next", "train.steps=2")
        self.refuses(self.train(*begin), DATA, "which is not given")
        self.succeeds(self.train(*begin, **right))

    def test_a_byte_that_has_changed(self):
        self.succeeds(self.train(self.key, ranks=1))
        model = self.run_folder / "model.safetensors"
        content = bytearray(model.read_bytes())
        content[len(content) // 2] ^= 1
        model.write_bytes(content)
        self.refuses(self.troika("generate", "runs/small"), DATA, "is damaged: it is not what was encrypted")
        manifest = self.run_folder / "checkpoints" / f"step-{self.newest():08}" / "manifest.json"
        content = json.loads(manifest.read_text())
        content["numbers"]["samples_consumed"] += 1
        manifest.write_text(json.dumps(content))
        self.refuses(self.troika("checkpoint", "verify", "runs/small"), DATA, "it has been changed, or is damaged")
        write_manifest(manifest, content)
        self.refuses(self.troika("checkpoint", "verify", "runs/small"), DATA, "it has been changed since its key authenticated it")

    def test_a_manifest_without_its_authentication(self):
        self.succeeds(self.train(self.key, ranks=1))
        manifest = self.run_folder / "checkpoints" / f"step-{self.newest():08}" / "manifest.json"
        content = json.loads(manifest.read_text())
        del content["encryption"]
        write_manifest(manifest, content)
        self.refuses(self.troika("checkpoint", "verify", "runs/small"), DATA, "no key authenticates it")

    def test_a_newer_checkpoint_whose_key_is_missing(self):
        """Is not damaged: a run does not go back to an older one."""
        sets = ("train.steps=10", "checkpoint.keep=9")
        self.succeeds(self.train(self.key, *sets, ranks=1))
        other = f"checkpoint.key=file:{self.folder / 'other'}"
        self.succeeds(self.train(other, "train.steps=20", *sets[1:], ranks=1, flags=("--resume",),
                                 TROIKA_KEY=f"file:{self.folder / 'key'}"))
        lines = (self.run_folder / "metrics.jsonl").read_bytes()
        steps = self.steps_there()
        (self.folder / "other").rename(self.folder / "elsewhere")
        refused = self.refuses(self.train(self.key, "train.steps=30", *sets[1:], ranks=1, flags=("--resume",)), DATA,
                               "which is not given")
        self.assertIn("hint: set checkpoint.key in the recipe, or TROIKA_KEY=", refused.err)
        self.assertEqual(self.steps_there(), steps)
        self.assertEqual((self.run_folder / "metrics.jsonl").read_bytes(), lines)

    def test_a_key_that_is_forgotten(self):
        """Would leave plain files beside those that are encrypted; and who only looks needs none."""
        self.succeeds(self.train(self.key, ranks=1))
        self.refuses(self.train("train.steps=70", ranks=1), USAGE, "checkpoint.key was ")
        (self.folder / "key").rename(self.folder / "elsewhere")
        self.refuses(self.troika("generate", "runs/small"), DATA,
                     f"which is not given: checkpoint.key = 'file:{self.folder / 'key'}' cannot be read: ")
        self.succeeds(self.troika("generate", "runs/small", "--tokens", 4, TROIKA_KEY=f"file:{self.folder / 'elsewhere'}"))

    def test_keys_that_are_none(self):
        self.fails(self.train(f"checkpoint.key={KEY}"), USAGE, "expected where a key lies, not the key")
        self.fails(self.train("checkpoint.key=env:NO_SUCH_KEY"), USAGE, "NO_SUCH_KEY, which should hold a key, is not set")
        self.fails(self.train(f"checkpoint.key=file:{self.folder / 'absent'}"), DATA, "absent")
        (self.folder / "short").write_text("12")
        wrong = self.fails(self.train(f"checkpoint.key=file:{self.folder / 'short'}"), USAGE, "does not hold a key")
        self.assertIn("openssl rand -hex 32", wrong.err)
        self.assertFalse(self.run_folder.exists() and any(self.run_folder.rglob("*.safetensors")))


if __name__ == "__main__":
    command.main()
