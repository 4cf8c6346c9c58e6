"""What the programs of examples/ do when they run: for the tests of those that the build has compiled, and of those
that are compiled against an installed troika."""

import json
import pathlib
import re
import subprocess

from launchers import PATIENCE_SECONDS, environment, open_mpi

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_in(folder, *command, status=0, **changes):
    """Runs a command that has to end with the exit status, or one of several."""
    done = subprocess.run(list(map(str, command)), cwd=folder, text=True, env=environment(**{"OMP_NUM_THREADS": "1", **open_mpi(), **changes}),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * PATIENCE_SECONDS)
    if done.returncode not in (status if isinstance(status, tuple) else (status,)):
        raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


class Launching:
    """For a TestCase with `folder`, where programs run, and `command()`, the path of troika."""

    def launch(self, ranks, program, *arguments):
        return run_in(self.folder, self.command(), "launch", "--ranks", ranks, "--", program, *arguments).stdout


class Examples(Launching):
    """For one that has `program(example)` besides."""

    def epochs_of(self, ranks, program, *arguments):
        """The lines that an example prints, one an epoch; its loss has fallen."""
        lines = self.launch(ranks, program, *arguments).splitlines()
        epochs = [line for line in lines if line.startswith("epoch ")]
        losses = [float(re.search(r"loss ([0-9.e+-]+)", line)[1]) for line in epochs]
        self.assertGreater(len(losses), 1, lines)
        self.assertLess(losses[-1], 0.7 * losses[0], epochs)
        return epochs

    def test_examples_of_ones_own_module(self):
        self.epochs_of(2, self.program("own-module"))
        self.assertTrue((self.folder / "own-module.pt").is_file())

    def test_an_example_of_ones_own_loop(self):
        program = self.program("own-loop")
        epochs = self.epochs_of(2, program)
        for epoch in epochs:
            self.assertIn("steps of the ranks 9 8,", epoch)
        # One rank sees as many samples, in steps of half as many.
        self.assertIn("steps of the ranks 17,", self.epochs_of(1, program)[0])

    def test_an_example_on_gpus(self):
        """Where there are none, the CPU is taken, and a device that is asked for is named."""
        program = self.program("own-gpu")
        self.epochs_of(2, program)
        self.assertIn("rank 1 computed on cpu", self.launch(2, program, "cpu"))
        asked = run_in(self.folder, program, "cuda:9", status=2)
        self.assertRegex(asked.stderr, 'device = "cuda:9": (this process has no cuda device|there are)')

    def test_an_example_of_mixed_precision(self):
        program = self.program("own-amp")
        for line in self.epochs_of(2, program, "bf16"):
            self.assertIn("32 of 32 steps taken, scale 1", line)
        first, *others = self.epochs_of(2, program, "fp16")
        self.assertRegex(first, "2[0-9] of 32 steps taken, scale")
        self.assertIn("32 of 32 steps taken", others[-1])

    def test_an_example_of_zero(self):
        program = self.program("own-zero")
        kept = {}
        for stage in (0, 1, 2):
            epochs = self.epochs_of(2, program, stage)
            kept[stage] = int(re.search(r"(\d+) bytes of optimiser", epochs[-1])[1])
        self.assertAlmostEqual(kept[1] / kept[0], 0.5, delta=0.01)
        self.assertEqual(kept[1], kept[2])

    def test_an_example_of_servers(self):
        """Words whose neighbours tell them; rows are made as they are seen."""
        text = "".join(f"static int f{i % 7}(int n) {{ return n * {i % 11}; }}\n" for i in range(400))
        (self.folder / "text").mkdir()
        (self.folder / "text" / "functions.c").write_text(text)
        try:
            lines = self.launch(2, self.program("own-servers"), self.folder / "text", 200).splitlines()
        except AssertionError as error:
            if "Arrow Flight" not in str(error):
                raise
            self.skipTest("built without Arrow Flight")
        losses = [float(re.search(r"loss ([0-9.]+)", line)[1]) for line in lines if line.startswith("step ")]
        self.assertLess(losses[-1], 0.8 * losses[0], lines)
        self.assertTrue(any("words, 22 of them different" in line for line in lines), lines)

    def test_an_example_of_a_pipeline(self):
        program = self.program("own-pipeline")
        alone = self.epochs_of(1, program)[-1]
        piped = self.epochs_of(2, program, 2, "zb-v")[-1]
        self.assertEqual(re.search("loss ([0-9.]{4})", alone)[1], re.search("loss ([0-9.]{4})", piped)[1])
        both = self.epochs_of(4, program, 2, "1f1b", 3)
        self.assertIn("3 units", both[-1])

    def test_an_example_of_a_recipe(self):
        program = self.program("own-recipe")
        words = (ROOT / "recipes" / "quickstart.toml", "data.kind=random", "train.precision=fp64", "train.steps=2",
                 "model.dim=32", "model.ffn_dim=48", "model.seq_len=16", "train.evaluate_every_steps=0")
        alone = json.loads(run_in(self.folder, program, *words, "name=alone").stdout)
        split = json.loads(self.launch(2, program, *words, "name=split", "parallel.tensor=2"))
        self.assertEqual(split["mesh"]["tensor"], 2)
        self.assertAlmostEqual(split["loss"], alone["loss"], places=10)
        self.assertTrue((self.folder / "runs" / "split" / "model.safetensors").is_file())

    def test_an_example_of_a_plug_in(self):
        library = f"model.library={self.library('own-model-plugin')}"
        (self.folder / "mixer.toml").write_bytes((ROOT / "examples" / "own-model-plugin" / "mixer.toml").read_bytes())
        run_in(self.folder, self.command(), "train", "mixer.toml", "--ranks", 2, "--set", library)
        summary = json.loads((self.folder / "runs" / "mixer" / "summary.json").read_text())
        self.assertGreater(summary["held_out_accuracy"], 0.3)  # 0.1 by chance

    def test_an_example_that_writes_text(self):
        (self.folder / "text.txt").write_text("int main() { return 0; }\n" * 20)
        words = ("name=text", 'data.paths=["text.txt"]', "data.held_out_fraction=0", "train.steps=2", "model.dim=32",
                 "model.ffn_dim=48", "model.seq_len=16")
        sets = [word for one in words for word in ("--set", one)]
        run_in(self.folder, self.command(), "train", ROOT / "recipes" / "quickstart.toml", "--ranks", 1, *sets)
        written = run_in(self.folder, self.program("own-text"), "runs/text", "int ").stdout
        self.assertTrue(written.startswith("int "), written)
        self.assertEqual(written.rstrip("\n"), run_in(
            self.folder, self.command(), "generate", "runs/text", "--prompt", "int ", "--tokens", 100).stdout.rstrip("\n"))
