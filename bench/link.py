"""Two hosts on a slow link: network namespaces of tests/lab, where this machine can have them."""

import os
import pathlib
import shutil
import subprocess

from runs import Failed

LAB = pathlib.Path(__file__).resolve().parent.parent / "tests" / "lab"
ADDRESS = "10.99.0.1"  # of the first host
DELAY_MS, RATE_MBIT = 5, 200
LAB_SECONDS = 120


def why_not():
    """What is missing for it here; None where nothing is."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program in ("ip", "c++"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None if os.path.exists("/dev/net/tun") else "there is no /dev/net/tun"


class Link:
    def __init__(self, scratch, delay_ms=DELAY_MS, rate_mbit=RATE_MBIT):
        self.delay_ms, self.rate_mbit = delay_ms, rate_mbit
        self.prefix = f"bench{os.getpid()}"
        self.wire = scratch / "lab_wire"
        self.log = scratch / "lab.log"

    def on(self, host, command):
        """The same command on host 0 or 1."""
        return ["ip", "netns", "exec", f"{self.prefix}-{host + 1}", *command]

    def call(self, *command):
        # Not through pipes: the wire stays, and would keep them open.
        with open(self.log, "w") as log:
            done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  timeout=LAB_SECONDS)
        return done.returncode == 0

    def __enter__(self):
        if not (self.call("c++", "-std=c++20", "-O2", LAB / "wire.cc", "-o", self.wire)
                and self.call(LAB / "netns.sh", "up", self.prefix, 2, self.wire, self.delay_ms, self.rate_mbit)):
            said = self.log.read_text()[-2000:]
            self.__exit__()
            raise Failed(f"no two hosts on a slow link:\n{said}")
        return self

    def __exit__(self, *_):
        self.call(LAB / "netns.sh", "down", self.prefix)
