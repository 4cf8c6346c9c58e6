"""What good runs leave behind, and say while they run.

TROIKA_TEST_PYTHON, where it is set, is a Python that has the `tensorboard` package.
"""

import json
import os
import pathlib
import pty
import shutil
import socket
import subprocess
import sys
import unittest

import command
from command import CommandTest
from launchers import PATIENCE_SECONDS, environment, reserved_port

HERE = pathlib.Path(__file__).resolve().parent
TEST_PYTHON = os.environ.get("TROIKA_TEST_PYTHON")
METRICS = ["step", "loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second", "step_seconds",
           "data_wait_seconds"]
TRACKS = {"forward", "backward", "communication", "optimiser", "data"}


class RunFolder(CommandTest):
    def test_everything_that_a_run_leaves(self):
        """One run on two ranks, looked at from every side."""
        done = self.train("train.steps=4", "train.deterministic=true", "observe.trace_steps=[2, 3]",
                          "debug.dump_steps=[1, 3]", ranks=2, flags=["--json"])
        self.succeeds(done)
        self.assertEqual(done.out.count("\n"), 1, "one line of JSON")
        summary = json.loads(done.out)
        with self.subTest("summary"):
            self.check_summary(summary)
        with self.subTest("metrics"):
            self.check_metrics(summary)
        with self.subTest("trace"):
            self.check_trace()
        with self.subTest("dumps"):
            self.check_dumps()
        with self.subTest("files"):
            self.assertFalse([path for path in self.run_folder.rglob("*") if ".tmp" in path.name])
            self.assertTrue((self.run_folder / "model.safetensors").is_file())
        with self.subTest("tensorboard"):
            self.check_tensorboard()
        with self.subTest("generate"):
            self.check_generate()
        with self.subTest("the recipe trains again"):
            self.check_recipe()

    def check_summary(self, summary):
        self.assertEqual(summary["world_size"], 2)
        self.assertEqual(summary["mesh"], {"pipeline": 1, "data": 2, "context": 1, "tensor": 1})
        self.assertEqual((summary["step"], summary["steps"], summary["samples"]), (4, 4, 16))
        self.assertEqual([rank["rank"] for rank in summary["ranks"]], [0, 1])
        self.assertEqual(len({rank["pid"] for rank in summary["ranks"]}), 2)
        for rank in summary["ranks"]:
            self.assertEqual(rank["host"], socket.gethostname())
            self.assertGreater(rank["peak_memory_bytes"], 10 << 20)
            # At least every gradient once a step, of 4 bytes.
            self.assertGreater(rank["input_bytes"]["data"], 4 * 4 * 16000)

    def check_metrics(self, summary):
        metrics = self.metrics()
        self.assertEqual([line["step"] for line in metrics], [1, 2, 3, 4])
        for line in metrics:
            self.assertEqual(list(line)[:len(METRICS)], METRICS)
        self.assertEqual([line["tokens"] for line in metrics], [128 * step for step in (1, 2, 3, 4)])
        self.assertEqual([line["step"] for line in metrics if "held_out_loss" in line], [2, 4])
        # 17 digits: a float is read as the very one that was written.
        self.assertEqual(metrics[-1]["loss"], summary["loss"])
        self.assertEqual(metrics[-1]["grad_norm"], summary["grad_norm"])
        self.assertTrue(all(4 < line["loss"] < 7 for line in metrics))

    def check_trace(self):
        events = json.loads((self.run_folder / "trace.json").read_text())["traceEvents"]
        for rank in (0, 1):
            spans = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
            self.assertLessEqual(TRACKS, {span["cat"] for span in spans})
            self.assertEqual([span["name"] for span in spans if span["cat"] == "step"], ["step 2", "step 3"])
            named = {event["args"]["name"] for event in events
                     if event["pid"] == rank and event["ph"] == "M" and event["name"] == "thread_name"}
            self.assertLessEqual(TRACKS, named)

    def check_dumps(self):
        dumps = sorted(str(path.relative_to(self.run_folder)) for path in self.run_folder.glob("dump/*/*"))
        self.assertEqual(dumps, [f"dump/step-{step}/{name}.safetensors" for step in (1, 3)
                                 for name in ("batch", "gradients", "parameters")])

    def check_tensorboard(self):
        self.assertEqual(len(list(self.run_folder.glob("events.out.tfevents.*"))), 1)
        if not TEST_PYTHON:
            self.skipTest("TROIKA_TEST_PYTHON is not set: nobody reads the TensorBoard files back")
        read = subprocess.run([TEST_PYTHON, HERE / "tensorboard_readback.py", self.run_folder,
                               self.run_folder / "metrics.jsonl", "--metrics"], capture_output=True, text=True)
        self.assertEqual(read.returncode, 0, read.stdout + read.stderr)

    def check_generate(self):
        def sample(*flags):
            return self.succeeds(self.troika("generate", "runs/small", "--tokens", 40, "--prompt", "ab ", *flags)).out

        first = sample()
        self.assertTrue(first.startswith("ab "), first)
        self.assertGreater(len(first), 20)
        self.assertEqual(sample(), first)
        self.assertNotEqual(sample("--seed", 2), first)

    def check_recipe(self):
        """The resolved recipe trains the same run, bit for bit."""
        first = self.losses()
        again = self.troika("train", "runs/small/recipe.toml", "--set", "name=again")
        self.succeeds(again)
        self.assertEqual(self.losses(self.folder / "runs" / "again"), first)
        self.assertEqual((self.folder / "runs/again/model.safetensors").read_bytes(),
                         (self.run_folder / "model.safetensors").read_bytes())
        resolved = (self.run_folder / "recipe.toml").read_text()
        self.assertIn("[provenance]", resolved)
        self.assertIn("\ndata = 2\n", resolved)

    def test_an_mlp(self):
        (self.folder / "recipe.toml").write_text(
            'name = "small"\n[model]\nkind = "mlp"\ninput_dim = 8\nhidden_dims = [16]\noutput_dim = 3\n'
            '[data]\nkind = "random"\n[train]\nsteps = 30\nglobal_batch_size = 16\nprecision = "fp32"\n'
            '[optimizer]\nlr = 0.02\nwarmup_steps = 0\n')
        self.succeeds(self.train(ranks=2))
        losses = self.losses()
        self.assertLess(sum(losses[-5:]), 0.9 * sum(losses[:5]))


class GlobsOfEverything(CommandTest):
    def test_what_runs_write_is_no_data(self):
        """With `**` the second run reads what the first has read, and no more."""
        for name in ("one", "two"):
            done = self.succeeds(self.train('data.paths=["**"]', f"name={name}", "debug.dump_steps=[1]", ranks=2))
            self.assertIn("left out of the data: ", done.err)
        self.assertIn("'runs/one'", done.err)
        self.assertEqual(self.losses(self.folder / "runs" / "two"), self.losses(self.folder / "runs" / "one"))
        self.assertRegex(done.err, "data: 13 documents")  # the text, and recipe.toml


class TokenShards(CommandTest):
    def test_they_train_as_the_text_they_are_made_of(self):
        self.succeeds(self.train())
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt"))
        self.succeeds(self.train("name=shards", "data.kind=tokens", 'data.paths=["corpus/*.tokens"]'))
        self.assertEqual(self.losses(self.folder / "runs" / "shards"), self.losses())

    def test_a_trained_tokenizer(self):
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt", "--train-tokenizer",
                                  "--vocab-size", 300))
        sets = ("data.kind=tokens", 'data.paths=["corpus/*.tokens"]', "data.tokenizer=corpus/tokenizer.model",
                "model.vocab_size=300")
        self.succeeds(self.train(*sets))
        self.assertIn("held_out_bits_per_byte", self.metrics()[-1])
        text = self.succeeds(self.troika("generate", "runs/small", "--prompt", "aa bb", "--tokens", 8)).out
        self.assertTrue(text.startswith("aa bb"), text)


class Observed(CommandTest):
    def test_progress_in_plain_lines_where_there_is_no_terminal(self):
        done = self.succeeds(self.train(ranks=2))
        self.assertEqual(done.out, "")
        self.assertNotRegex(done.err, "[\r\x1b]")
        self.assertRegex(done.err, r"(?m)^step 3/3  loss \d\.\d{4}  .*tokens/s")
        self.assertRegex(done.err, r"(?m)^done: loss \d\.\d{4}, held-out \d\.\d{3} bits per byte, ")
        self.assertEqual(done.error_lines[-1], "run folder: runs/small")

    def test_a_live_line_on_a_terminal(self):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            process = subprocess.Popen([os.environ["TROIKA"], "train", "recipe.toml", "--ranks", "2"],
                                       cwd=self.folder, env=environment(OMP_NUM_THREADS="1", TERM="xterm"),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            text = b""
            try:
                while chunk := terminal.read(4096):
                    text += chunk
            except OSError:  # how Linux says that the other end has closed
                pass
            self.assertEqual(process.wait(timeout=PATIENCE_SECONDS), 0, text)
        self.assertRegex(text.decode(), "\r(\x1b\\[\\w)?step 3/3  loss ")

    def test_prometheus_scrapes_a_run(self):
        if not shutil.which("prometheus"):
            self.skipTest("the prometheus program is not installed")
        port = reserved_port()
        process = self.start_training(f"observe.prometheus_port={port}", "observe.tensorboard=false")
        self.assertEqual(listening_addresses(port), {"127.0.0.1"})
        scraped = subprocess.run([sys.executable, HERE / "prometheus_scrape.py", str(port), "troika_step",
                                  "--label", "run=small", "--at-least", "2"], capture_output=True, text=True)
        self.assertEqual(scraped.returncode, 0, scraped.stdout + scraped.stderr)
        command.end(process)


def listening_addresses(port):
    """The IPv4 addresses on which somebody listens at a port, by the kernel's table."""
    found = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, number = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(number, 16) == port:
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    return found


class Help(CommandTest):
    COMMANDS = ("", "train", "generate", "data prepare", "recipe", "recipe check", "recipe show", "inspect", "doctor", "completion")

    def test_every_subcommand_has_examples(self):
        for name in self.COMMANDS:
            with self.subTest(name):
                done = self.succeeds(self.troika(*name.split(), "--help"))
                self.assertRegex(done.out, "\nExamples?:\n")
                self.assertEqual(done.err, "")

    def test_completion_scripts_parse(self):
        for shell in ("bash", "zsh", "fish"):
            with self.subTest(shell):
                script = self.succeeds(self.troika("completion", shell)).out
                self.assertIn("generate", script)
                if not shutil.which(shell):
                    self.skipTest(f"{shell} is not installed")
                parsed = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
                self.assertEqual((parsed.returncode, parsed.stderr), (0, ""))

    def test_bash_completes_flags_and_subcommands(self):
        script = self.troika("completion", "bash").out
        ask = script + ('\nCOMP_WORDS=(troika train --ra); COMP_CWORD=2; _troika; echo "${COMPREPLY[*]}"'
                        '\nCOMP_WORDS=(troika gen); COMP_CWORD=1; _troika; echo "${COMPREPLY[*]}"')
        answer = subprocess.run(["bash", "-c", ask], text=True, capture_output=True)
        self.assertEqual(answer.stdout.split("\n")[:2], ["--ranks --ranks-per-node", "generate"], answer.stderr)

    def test_the_printed_defaults_are_a_recipe(self):
        defaults = self.succeeds(self.troika("recipe", "--defaults")).out
        (self.folder / "defaults.toml").write_text(defaults)
        self.succeeds(self.troika("recipe", "check", "defaults.toml"))


if __name__ == "__main__":
    command.main()
