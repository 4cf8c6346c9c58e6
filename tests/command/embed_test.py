"""add_subdirectory(troika) in another project: embed_test.py BUILD_FOLDER CMAKE_ARGUMENT...

All of it is configured. What is built and run is a program that uses one small folder, because the whole library
takes minutes. The build folder stays, so that the next time is quick.
"""

import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent / "embed"


class Embed(unittest.TestCase):
    def runs(self, *command):
        done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}")
        return done.stdout

    def test_a_program_that_uses_troika(self):
        build = pathlib.Path(sys.argv[1])
        self.runs("cmake", "-G", "Ninja", "-S", SOURCE, "-B", build, *sys.argv[2:])
        self.runs("cmake", "--build", build, "--target", "embed_mesh", "-j", "1")
        self.assertEqual(self.runs(build / "embed_mesh"), "pipeline 1 x data 2 x context 1 x tensor 3\nranks 1 and 4\n")

        # All of the library: what would be run to build it.
        commands = self.runs("ninja", "-C", build, "-t", "commands", "embed_all").splitlines()
        (link,) = (line for line in commands if " -o embed_all " in line)
        for library in ("libtroika_train.a", "libtroika_launch.a"):
            self.assertIn(library, link)
        (libtorch,) = {word for word in link.split() if word.endswith("/libtorch_cpu.so")}
        self.assertTrue(pathlib.Path(libtorch).is_file(), libtorch)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
