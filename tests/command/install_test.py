"""`cmake --install`, and programs of somebody else's that use what it has installed.

Usage: install_test.py BUILD_FOLDER SCRATCH_FOLDER CXX_COMPILER

The programs lie in examples/ and beside this file, are built outside the tree, and run: on one rank, under
`troika launch`, and under a real mpirun. The scratch folder stays, so that compiling is quick the next time.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from launchers import PATIENCE_SECONDS, environment

BUILD, SCRATCH, COMPILER = map(pathlib.Path, sys.argv[1:4])
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Open MPI refuses to run as root, and more ranks than cores, unless told.
VARIABLES = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                 OMPI_MCA_rmaps_base_oversubscribe="1", OMP_NUM_THREADS="1")


class Install(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="troika-test-")
        cls.addClassCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        # It may be moved. The place is the same each time, so that programs built against it are up to date.
        cls.prefix = SCRATCH / "moved" / "troika"
        shutil.rmtree(cls.prefix.parent, ignore_errors=True)
        cls.prefix.parent.mkdir(parents=True)
        before = os.umask(0o022)  # as `make install` has it
        cls.run_in(None, "cmake", "--install", BUILD, "--prefix", folder / "first")
        os.umask(before)
        shutil.move(folder / "first", cls.prefix)
        cls.folder = folder

    @classmethod
    def run_in(cls, folder, *command, status=0, **changes):
        done = subprocess.run(list(map(str, command)), cwd=folder, text=True, env=environment(**VARIABLES, **changes),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * PATIENCE_SECONDS)
        if done.returncode not in (status if isinstance(status, tuple) else (status,)):
            raise AssertionError(f"{command}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def configure(self, source, build, *flags, status=0, **changes):
        return self.run_in(None, "cmake", "-G", "Ninja", "-S", source, "-B", build,
                           f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}", *flags,
                           status=status, **changes)

    def built(self, source, variant="", *flags):
        build = SCRATCH / "-".join(filter(None, (source.name, variant)))
        self.configure(source, build, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", *flags)
        self.run_in(None, "cmake", "--build", build, "-j", "1")
        return build

    def test_the_command_runs_where_it_is_installed(self):
        command = self.prefix / "bin" / "troika"
        self.assertRegex(self.run_in(self.folder, command, "--version").stdout, r"^0\.")
        facts = json.loads(self.run_in(self.folder, command, "bench", "comm", "--ranks", "2", "--engine", "shm",
                                       "--sizes", "4K", "--budget", "0", "--json").stdout)
        self.assertEqual(facts["results"][0]["bytes"], 4096)

    def test_any_account_can_run_it(self):
        """Nothing of it lies in the cache of whoever has built it, which others may not read."""
        if not (self.prefix / "lib").is_dir() or not list(self.prefix.rglob("libtorch_cpu.so")):
            self.skipTest("this build was given its LibTorch by Torch_DIR, which is not installed with it")
        command = self.prefix / "bin" / "troika"
        for binary in (command, *self.prefix.glob("lib*/**/libtroika.so")):
            found = dict(re.findall(r"(\S+) => (\S+)", self.run_in(None, "ldd", binary).stdout))
            for name in ("libtorch_cpu.so", "libc10.so", "libcudart.so.13"):
                self.assertTrue(found.get(name, str(self.prefix)).startswith(str(self.prefix)), found)
        for path in self.prefix.rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o444, 0o444, path)
        if os.geteuid() != 0:
            self.skipTest("only root can run it under another account")
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        if subprocess.run(["test", "-x", command], **nobody).returncode != 0:
            self.skipTest("this tree lies where another account may not look")
        done = subprocess.run([command, "--version"], cwd="/", env={"HOME": "/nonexistent"}, text=True, capture_output=True, **nobody)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^0\.")

    def tokenizer(self, name, status=0, **variables):
        """Trains one with the installed command: its path, or what the command says instead."""
        (self.folder / "text.txt").write_text("int main() { return 0; }\n" * 20)
        done = self.run_in(self.folder, self.prefix / "bin" / "troika", "data", "prepare", name, "text.txt",
                           "--train-tokenizer", "--vocab-size", "300", status=status, **variables)
        return done.stderr if status else self.folder / name / "tokenizer.model"

    def test_tokenizers_come_with_it(self):
        plugin, = self.prefix.glob("lib*/**/troika/libtroika_sentencepiece.so")
        self.assertTrue(self.tokenizer("pieces").is_file())
        # The command takes the one that was installed with it, and one that it is told to take before that.
        aside = self.folder / "plugins" / plugin.name
        aside.parent.mkdir()
        shutil.move(plugin, aside)
        plugin.write_text("no library\n")
        try:
            self.assertIn(f"cannot load '{plugin}'", self.tokenizer("no-pieces", status=2))
            self.assertTrue(self.tokenizer("more", TROIKA_PLUGINS=str(aside.parent)).is_file())
        finally:
            shutil.move(aside, plugin)

    def test_what_sentencepiece_says_itself_does_not_come_between(self):
        """It logs to a std::cerr which a program that is not position-independent has not constructed."""
        program = self.built(ROOT / "examples" / "own-recipe") / "own_recipe"
        sample = b"\x0a\x01a" b"\x12\x01b"  # ModelProto.self_test_data: that "a" is to give "b"
        model = self.folder / "contradicts-itself.model"
        model.write_bytes(self.tokenizer("whole").read_bytes() + b"\x22\x08\x0a\x06" + sample)
        done = self.run_in(self.folder, program, ROOT / "recipes" / "quickstart.toml", "name=refused",
                           f"data.tokenizer={model}", f"data.paths=['{self.folder}/text.txt']", status=3)
        self.assertEqual(done.stderr.splitlines(), [
            f"own_recipe: '{model}' is not a SentencePiece model",
            'hint: data.tokenizer is "bytes" or the path of a SentencePiece model file'])

    def test_public_headers_stand_and_internal_ones_do_not(self):
        include = self.prefix / "include" / "troika"
        for header in ("troika.h", "troika.f90", "session/session.h", "parallel/data_parallel/data_parallel.h", "parallel/data_parallel/zero_redundancy_optimizer.h",
                       "parallel/pipeline/module_pipeline.h", "comm/group.h"):
            self.assertTrue((include / header).is_file(), header)
        for header in include.rglob("*.h"):
            self.assertNotIn("Internal", header.read_text().split("#pragma once")[0], header)

    def test_a_program_in_cpp(self):
        build = self.built(pathlib.Path(__file__).resolve().parent / "consumer")
        self.assertEqual(self.run_in(self.folder, build / "consumer").stdout, "rank 0 of 1: sum 1\n")
        self.assertEqual(sorted(self.launch(3, build / "consumer").splitlines()),
                         ["[rank 1] rank 1 of 3: sum 6", "[rank 2] rank 2 of 3: sum 6", "rank 0 of 3: sum 6"])

    def launch(self, ranks, program, *arguments):
        return self.run_in(self.folder, self.prefix / "bin" / "troika", "launch", "--ranks", ranks, "--", program,
                           *arguments).stdout

    def epochs_of(self, ranks, program, *arguments):
        """The lines that an example prints, one an epoch; its loss has fallen."""
        lines = self.launch(ranks, program, *arguments).splitlines()
        epochs = [line for line in lines if line.startswith("epoch ")]
        losses = [float(re.search(r"loss ([0-9.e+-]+)", line)[1]) for line in epochs]
        self.assertGreater(len(losses), 1, lines)
        self.assertLess(losses[-1], 0.7 * losses[0], epochs)
        return epochs

    def test_examples_of_ones_own_module(self):
        self.epochs_of(2, self.built(ROOT / "examples" / "own-module") / "own_module")
        self.assertTrue((self.folder / "own-module.pt").is_file())

    def test_an_example_of_ones_own_loop(self):
        program = self.built(ROOT / "examples" / "own-loop") / "own_loop"
        epochs = self.epochs_of(2, program)
        for epoch in epochs:
            self.assertIn("steps of the ranks 9 8,", epoch)
        # One rank sees as many samples, in steps of half as many.
        self.assertIn("steps of the ranks 17,", self.epochs_of(1, program)[0])

    def test_an_example_of_zero(self):
        program = self.built(ROOT / "examples" / "own-zero") / "own_zero"
        kept = {}
        for stage in (0, 1, 2):
            epochs = self.epochs_of(2, program, stage)
            kept[stage] = int(re.search(r"(\d+) bytes of optimiser", epochs[-1])[1])
        self.assertAlmostEqual(kept[1] / kept[0], 0.5, delta=0.01)
        self.assertEqual(kept[1], kept[2])

    def test_an_example_of_a_pipeline(self):
        program = self.built(ROOT / "examples" / "own-pipeline") / "own_pipeline"
        alone = self.epochs_of(1, program)[-1]
        piped = self.epochs_of(2, program, 2, "zb-v")[-1]
        self.assertEqual(re.search("loss ([0-9.]{4})", alone)[1], re.search("loss ([0-9.]{4})", piped)[1])
        both = self.epochs_of(4, program, 2, "1f1b", 3)
        self.assertIn("3 units", both[-1])

    def test_an_example_of_a_recipe(self):
        program = self.built(ROOT / "examples" / "own-recipe") / "own_recipe"
        words = (ROOT / "recipes" / "quickstart.toml", "data.kind=random", "train.precision=fp64", "train.steps=2",
                 "model.dim=32", "model.ffn_dim=48", "model.seq_len=16", "train.evaluate_every_steps=0")
        alone = json.loads(self.run_in(self.folder, program, *words, "name=alone").stdout)
        split = json.loads(self.run_in(self.folder, self.prefix / "bin" / "troika", "launch", "--ranks", 2, "--",
                                       program, *words, "name=split", "parallel.tensor=2").stdout)
        self.assertEqual(split["mesh"]["tensor"], 2)
        self.assertAlmostEqual(split["loss"], alone["loss"], places=10)
        self.assertTrue((self.folder / "runs" / "split" / "model.safetensors").is_file())

    def test_an_example_that_writes_text(self):
        command = self.prefix / "bin" / "troika"
        (self.folder / "text.txt").write_text("int main() { return 0; }\n" * 20)
        words = ("name=text", 'data.paths=["text.txt"]', "data.held_out_fraction=0", "train.steps=2", "model.dim=32",
                 "model.ffn_dim=48", "model.seq_len=16")
        sets = [word for one in words for word in ("--set", one)]
        self.run_in(self.folder, command, "train", ROOT / "recipes" / "quickstart.toml", "--ranks", 1, *sets)
        program = self.built(ROOT / "examples" / "own-text") / "own_text"
        written = self.run_in(self.folder, program, "runs/text", "int ").stdout
        self.assertTrue(written.startswith("int "), written)
        self.assertEqual(written.rstrip("\n"), self.run_in(
            self.folder, command, "generate", "runs/text", "--prompt", "int ", "--tokens", 100).stdout.rstrip("\n"))

    def test_another_libtorch_is_asked_for_by_torch_dir(self):
        source = pathlib.Path(__file__).resolve().parent / "consumer"
        done = self.configure(source, self.folder / "refused", status=1, Torch_DIR=str(self.folder))
        self.assertIn("set Torch_DIR to a LibTorch of that version", " ".join(done.stderr.split()))

    def test_simulations_in_c_and_fortran_under_mpirun(self):
        source = ROOT / "examples" / "in-simulation"
        wrong = self.folder / "wrong.toml"
        wrong.write_text((source / "surrogate.toml").read_text().replace('"mlp"', '"mlq"'))
        for mpi in mpis():
            with self.subTest(mpirun=mpi["mpirun"]):
                # A build folder for each, since CMake looks for MPI once.
                build = self.built(source, mpi["mpirun"], *mpi["flags"])
                programs = [build / "simulation"]
                if shutil.which("gfortran"):
                    programs.append(build / "simulation_fortran")
                else:
                    print("left out: the program in Fortran, because gfortran is not installed", file=sys.stderr)
                for program in programs:
                    self.check_simulation(mpi["mpirun"], program, source / "surrogate.toml", wrong)

    def check_simulation(self, mpirun, program, recipe, wrong):
        for ranks in (1, 2):
            model = self.folder / f"{program.name}-{mpirun}-{ranks}.safetensors"
            done = self.run_in(self.folder, mpirun, "-n", ranks, program, recipe, model)
            self.assertIn(f"{ranks} ranks: loss", done.stdout)
            self.assertTrue(model.is_file())
        # MPICH 4.0 makes 1 of a status that it is told before it sees the rank's connection close (pmi_cb() of Hydra).
        status = (1, 2) if mpirun.endswith("mpich") else 2
        done = self.run_in(self.folder, mpirun, "-n", 2, program, wrong, model, status=status)
        self.assertRegex(done.stderr, r"wrong\.toml:5: \[model\] kind: 'mlq'")


@functools.lru_cache(maxsize=None)
def mpis():
    """Each MPI that there is a plug-in for, with what CMake is told to find it; or what is just called mpirun."""
    found = []
    for plugin in sorted(BUILD.glob("libtroika_mpi_*.so")):
        flavour = plugin.stem.removeprefix("libtroika_mpi_")
        c, fortran, mpirun = (f"{name}.{flavour}" for name in ("mpicc", "mpifort", "mpirun"))
        if shutil.which(c) and shutil.which(mpirun):
            found.append({"mpirun": mpirun, "flags": [f"-DMPI_C_COMPILER={c}", f"-DMPI_Fortran_COMPILER={fortran}"]})
        else:
            print(f"left out: programs under {mpirun}, because there is no {c} or no {mpirun}", file=sys.stderr)
    if not found and shutil.which("mpicc") and shutil.which("mpirun"):
        found.append({"mpirun": "mpirun", "flags": []})
    return found


if __name__ == "__main__":
    if not mpis():
        del Install.test_simulations_in_c_and_fortran_under_mpirun
        print("left out: programs under mpirun, because there is no MPI to build them with", file=sys.stderr)
    unittest.main(argv=sys.argv[:1], verbosity=2)
