"""The programs of examples/, as the build has compiled them: examples_test.py EXAMPLES_FOLDER

Their losses fall, whatever the number of ranks. That they can be built against an installed troika is what
install_test.py shows, with the same checks.
"""

import os
import pathlib
import sys
import tempfile
import unittest

from example_runs import Examples
from slow import main

BUILT = pathlib.Path(sys.argv[1])


class Built(Examples, unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="troika-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def command(self):
        return os.environ["TROIKA"]

    def program(self, example):
        return BUILT / example / example.replace("-", "_")

    def library(self, example):
        return BUILT / example / f"lib{example.replace('-', '_')}.so"


if __name__ == "__main__":
    main(argv=sys.argv[:1])
