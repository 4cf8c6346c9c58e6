"""`cmake --install`, and programs of other projects that use what it has installed.

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

from example_runs import ROOT, Examples, Launching, run_in
from mpi_programs import mpis
from slow import main, slow

BUILD, SCRATCH, COMPILER = map(pathlib.Path, sys.argv[1:4])
# What has been compiled before, as by an earlier run in another build folder, is not compiled again.
LAUNCHER = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []


class Installed(Launching):
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
        run_in(None, "cmake", "--install", BUILD, "--prefix", folder / "first")
        os.umask(before)
        shutil.move(folder / "first", cls.prefix)
        cls.folder = folder

    def command(self):
        return self.prefix / "bin" / "troika"

    def configure(self, source, build, *flags, status=0, **changes):
        return run_in(None, "cmake", "-G", "Ninja", "-S", source, "-B", build,
                      f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={COMPILER}", *flags, status=status, **changes)

    def built(self, source, variant="", *flags):
        build = SCRATCH / "-".join(filter(None, (source.name, variant)))
        self.configure(source, build, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", *LAUNCHER, *flags)
        run_in(None, "cmake", "--build", build, "-j", "1")
        return build

    def program(self, example):
        return self.built(ROOT / "examples" / example) / example.replace("-", "_")

    def library(self, example):
        return self.built(ROOT / "examples" / example) / f"lib{example.replace('-', '_')}.so"

    def test_any_account_can_run_it(self):
        """Nothing of it lies in the cache of the user who has built it, which others may not read."""
        if not (self.prefix / "lib").is_dir() or not list(self.prefix.rglob("libtorch_cpu.so")):
            self.skipTest("this build was given its LibTorch by Torch_DIR, which is not installed with it")
        command = self.prefix / "bin" / "troika"
        for binary in (command, *self.prefix.glob("lib*/**/libtroika.so")):
            found = dict(re.findall(r"(\S+) => (\S+)", run_in(None, "ldd", binary).stdout))
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
        done = run_in(self.folder, self.command(), "data", "prepare", name, "text.txt", "--train-tokenizer",
                      "--vocab-size", "300", status=status, **variables)
        return done.stderr if status else self.folder / name / "tokenizer.model"


class Install(Installed, unittest.TestCase):
    def test_the_command_runs_where_it_is_installed(self):
        self.assertRegex(run_in(self.folder, self.command(), "--version").stdout, r"^0\.")
        facts = json.loads(run_in(self.folder, self.command(), "bench", "comm", "--ranks", "2", "--engine", "shm",
                                  "--sizes", "4K", "--budget", "0", "--json").stdout)
        self.assertEqual(facts["results"][0]["bytes"], 4096)

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

    def test_public_headers_stand_and_internal_ones_do_not(self):
        include = self.prefix / "include" / "troika"
        for header in ("troika.h", "troika.f90", "troika_arrays.f90", "troika_c.f90", "session/session.h", "parallel/data_parallel/data_parallel.h",
                       "parallel/data_parallel/zero_redundancy_optimizer.h", "parallel/pipeline/module_pipeline.h", "comm/group.h"):
            self.assertTrue((include / header).is_file(), header)
        for header in include.rglob("*.h"):
            self.assertNotIn("Internal", header.read_text().split("#pragma once")[0], header)

    def test_a_program_in_cpp(self):
        build = self.built(pathlib.Path(__file__).resolve().parent / "consumer")
        self.assertEqual(run_in(self.folder, build / "consumer").stdout, "rank 0 of 1: sum 1\n")
        self.assertEqual(sorted(self.launch(3, build / "consumer").splitlines()),
                         ["[rank 1] rank 1 of 3: sum 6", "[rank 2] rank 2 of 3: sum 6", "rank 0 of 3: sum 6"])

    def test_another_libtorch_is_asked_for_by_torch_dir(self):
        source = pathlib.Path(__file__).resolve().parent / "consumer"
        done = self.configure(source, self.folder / "refused", status=1, Torch_DIR=str(self.folder))
        self.assertIn("set Torch_DIR to a LibTorch of that version", " ".join(done.stderr.split()))

    def test_simulations_in_c_and_fortran_under_mpirun(self):
        self.check_simulations(mpis(BUILD)[:1])

    @slow
    def test_simulations_under_another_mpirun(self):
        self.check_simulations(mpis(BUILD)[1:])

    def check_simulations(self, chosen):
        if not chosen:
            self.skipTest("there is no MPI, or no other, to build programs with")
        source = ROOT / "examples" / "in-simulation"
        wrong = self.folder / "wrong.toml"
        wrong.write_text((source / "surrogate.toml").read_text().replace('"mlp"', '"mlq"'))
        for mpi in chosen:
            with self.subTest(mpirun=mpi["mpirun"]):
                # A build folder for each, since CMake looks for MPI once.
                build = self.built(source, mpi["mpirun"], *mpi["flags"])
                languages = ["", "_fortran"] if shutil.which("gfortran") else [""]
                if len(languages) == 1:
                    print("left out: programs in Fortran, because gfortran is not installed", file=sys.stderr)
                for language in languages:
                    self.check_simulation(mpi["mpirun"], build / f"simulation{language}", source / "surrogate.toml", wrong)
                    physics = "burgers" if language else "potential"
                    self.check_learns(mpi["mpirun"], build / f"{physics}{language}", source / f"{physics}.toml")
                    if python_with_torch():
                        self.check_network_of_python(mpi["mpirun"], build / f"materials{language}", source)

    def check_learns(self, mpirun, program, recipe):
        """The program says itself whether it has learnt."""
        for ranks in (1, 2):
            model = self.folder / f"{program.name}-{mpirun}-{ranks}.safetensors"
            done = run_in(self.folder, mpirun, "-n", ranks, program, recipe, model)
            self.assertIn(f"{ranks} ranks: loss", done.stdout)
            self.assertTrue(model.is_file())
        return model

    def check_simulation(self, mpirun, program, recipe, wrong):
        model = self.check_learns(mpirun, program, recipe)
        # MPICH 4.0 makes 1 of a status that it is told before it sees the rank's connection close (pmi_cb() of Hydra).
        status = (1, 2) if mpirun.endswith("mpich") else 2
        done = run_in(self.folder, mpirun, "-n", 2, program, wrong, model, status=status)
        self.assertRegex(done.stderr, r"wrong\.toml:5: \[model\] kind: 'mlq'")


    def check_network_of_python(self, mpirun, program, source):
        """Its recipe names net.pt2 in the current folder. It prints what the page says."""
        if not (self.folder / "net.pt2").exists():
            run_in(self.folder, python_with_torch(), source / "make_net.py")
        model = self.folder / f"{program.name}-{mpirun}.safetensors"
        page = (ROOT / "docs" / "in-simulation.md").read_text()
        *tensors, last = re.search(r"```\n(input field.*?)\n```", page, re.DOTALL)[1].splitlines()
        figures = re.compile(r"[-+.e\d]*\d", re.IGNORECASE)
        for ranks in (1, 2):
            done = run_in(self.folder, mpirun, "-n", ranks, program, source / "materials.toml", model)
            self.assertEqual(done.stdout.splitlines()[:-1], tensors)
            line = done.stdout.splitlines()[-1]
            self.assertEqual(figures.sub("", line).split(), figures.sub("", last).split())
            before, after, steps, rate, ratio = map(float, figures.findall(line))
            of_page = list(map(float, figures.findall(last)))
            self.assertEqual([round(before, 1), steps, rate, round(ratio, 2)], [of_page[i] for i in (0, 2, 3, 4)])
            self.assertLess(after, 10 * of_page[1])
        read = "import torch; net = torch.export.load('{}'); g = net.state_dict['gain.weight'].flatten().tolist(); print(round(g[1] / g[0], 2))"
        self.assertEqual(run_in(self.folder, python_with_torch(), "-c", read.format(model.with_suffix(".pt2"))).stdout, "4.0\n")


class InstalledExamples(Installed, Examples, unittest.TestCase):
    """Each of them is compiled against what is installed."""

    slow = True

    def test_what_sentencepiece_says_itself_does_not_come_between(self):
        """It logs to a std::cerr which a program that is not position-independent has not constructed."""
        program = self.program("own-recipe")
        sample = b"\x0a\x01a" b"\x12\x01b"  # ModelProto.self_test_data: that "a" is to give "b"
        model = self.folder / "contradicts-itself.model"
        model.write_bytes(self.tokenizer("whole").read_bytes() + b"\x22\x08\x0a\x06" + sample)
        done = run_in(self.folder, program, ROOT / "recipes" / "quickstart.toml", "name=refused",
                      f"data.tokenizer={model}", f"data.paths=['{self.folder}/text.txt']", status=3)
        self.assertEqual(done.stderr.splitlines(), [
            f"own_recipe: '{model}' is not a SentencePiece model",
            'hint: data.tokenizer is "bytes" or the path of a SentencePiece model file'])


@functools.lru_cache(maxsize=None)
def python_with_torch():
    """The interpreter of the tests' environment, which writes networks; empty where there is none."""
    python = os.environ.get("TROIKA_TEST_PYTHON", "")
    if not python:
        print("left out: programs with a network of Python's, which need TROIKA_TEST_PYTHON: make test sets it", file=sys.stderr)
    return python


if __name__ == "__main__":
    main(argv=sys.argv[:1])
