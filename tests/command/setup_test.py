"""What the build's set-up does, and what it leaves alone: setup_test.py FOLDER_OF_LIBTORCH"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBTORCH = pathlib.Path(sys.argv[1])
NOBODY = 65534


def run(*command, **variables):
    return subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **variables})


class TestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="troika-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class SystemPackages(TestCase):
    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root, to become somebody else")
    def test_who_may_not_install_gets_the_line_that_does(self):
        self.folder.chmod(0o755)
        shutil.copy(ROOT / "scripts" / "setup.sh", self.folder)
        packages = (ROOT / "scripts" / "packages.txt").read_text() + "build troika-no-such-package\n"
        (self.folder / "packages.txt").write_text(packages)
        for name in ("sudo", "apt-get"):  # neither is to be called
            (self.folder / name).write_text(f"#!/bin/sh\necho {name} was called\n")
            (self.folder / name).chmod(0o755)
        done = run("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", self.folder / "setup.sh", "build",
                   PATH=f"{self.folder}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 2, done.stdout)
        first, line = done.stdout.splitlines()
        self.assertIn("Run this line", first)
        self.assertRegex(line, r"^  sudo apt-get update && sudo apt-get install .* troika-no-such-package$")

    def test_a_second_run_installs_nothing_and_says_so(self):
        if not shutil.which("dpkg-query"):
            self.skipTest("not a Debian or Ubuntu machine")
        done = run(ROOT / "scripts" / "setup.sh", "build")
        self.assertEqual((done.returncode, done.stdout),
                         (0, "-- System packages (build): all there; nothing installed\n"))


class LibTorch(TestCase):
    def configure(self, torch_dir):
        return run("cmake", "-G", "Ninja", "-S", ROOT, "-B", self.folder / "build", "-DTROIKA_BUILD_TESTS=OFF",
                   Torch_DIR=str(torch_dir))

    def test_a_second_run_downloads_nothing_and_says_so(self):
        fetch = ROOT / "scripts" / "fetch_torch.py"
        self.assertEqual(run(sys.executable, fetch).returncode, 0)  # where Torch_DIR was used instead, this fetches
        done = run(sys.executable, fetch)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("; nothing downloaded\n", done.stdout)

    def test_torch_dir_points_to_another_one(self):
        for torch_dir in (LIBTORCH / "share" / "cmake" / "Torch", LIBTORCH):
            done = self.configure(torch_dir)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, rf"LibTorch 2\.11\.\d+: {LIBTORCH}\n")

    @unittest.skipUnless(shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin"), "there is no CUDA toolkit")
    def test_the_runtime_of_an_official_one_for_gpus_is_found_in_its_folder(self):
        """Its runtime has a name of its own there, libcudart-HASH.so.MAJOR, and has to be of the toolkit's version."""
        root = self.folder / "libtorch"
        (root / "lib").mkdir(parents=True)
        (root / "include").symlink_to(LIBTORCH / "include")
        for name in ("libc10.so", "libtorch_cpu.so"):
            (root / "lib" / name).symlink_to(LIBTORCH / "lib" / name)
        (root / "lib" / "libtorch_cuda.so").write_text("")
        runtime = root / "lib" / "libcudart-9335f6a2.so.9"
        runtime.write_text("")
        said = " ".join(self.configure(root).stdout.split())
        self.assertRegex(said, r"the plug-in for CUDA is left out: LibTorch's runtime is of CUDA 9, and the toolkit is \d+")
        toolkit = re.search(r"the toolkit is (\d+)", said).group(1)
        runtime.rename(root / "lib" / f"libcudart-9335f6a2.so.{toolkit}")
        done = self.configure(root)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, rf"its plug-in is built, for {root}/lib/libtorch_cuda.so\n")

    def test_one_that_is_not_there_or_not_tested_is_refused(self):
        self.assertIn("No LibTorch at", self.configure(self.folder / "nothing").stdout)
        header = self.folder / "old" / "include" / "torch" / "headeronly" / "version.h"
        header.parent.mkdir(parents=True)
        header.write_text("".join(f"#define TORCH_VERSION_{part} {number}\n"
                                  for part, number in (("MAJOR", 2), ("MINOR", 5), ("PATCH", 1))))
        done = self.configure(self.folder / "old")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("LibTorch 2.5.1", done.stdout)
        self.assertIn("outside the tested range", " ".join(done.stdout.split()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
