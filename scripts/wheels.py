"""Takes what a C++ program needs out of pinned wheels: headers, libraries, licences.

pip downloads the wheels of requirements/NAME.txt and checks their SHA-256. The result is moved into the cache in one
step, so a folder that is there is complete.
"""
import fnmatch
import sys
import tempfile
import zipfile
from pathlib import Path

from cache import REQUIREMENTS, digest, fail, has_module, locked, pins, pip

MANYLINUX = ["_2_28", "_2_27", "_2_25", "_2_18", "_2_17", "_2_12", "_2_5", "2014", "2010", "1"]
LICENCES = ["*.dist-info/licenses/*", "*.dist-info/LICENSE*"]


class Wanted:
    """The files of some wheels: NAMES of requirements, what to keep of them and what to drop of that."""

    def __init__(self, title, names, machine, keep, drop=(), instead=""):
        self.title, self.names, self.machine = title, names, machine
        self.keep, self.drop, self.instead = list(keep), list(drop), instead
        self.stamp = digest(sorted(pins(*names)), self.keep, self.drop)

    def version_of(self, package):
        return next(pin.split("==")[1] for pin in pins(*self.names) if pin.startswith(f"{package}=="))

    def ready(self, folder):
        marker = folder / "pins.sha256"
        return marker.exists() and marker.read_text() == self.stamp

    def fetch(self, folder, announce):
        """Makes the folder, unless another process does so first; `announce` is called before the download."""
        with locked(folder):
            if self.ready(folder):
                return
            announce()
            with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch:
                self._fetch(folder, Path(scratch))

    def _fetch(self, folder, scratch):
        wheels, fresh = scratch / "wheels", scratch / "fresh"
        wheels.mkdir()
        self._download(wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            self._extract(wheel, fresh)
        (fresh / "pins.sha256").write_text(self.stamp)
        if folder.exists():  # fetched for other pins
            folder.rename(scratch / "outdated")
        fresh.rename(folder)

    def _download(self, into):
        if not has_module("pip"):
            fail(f"{sys.executable} has no pip, which downloads {self.title}. Install it (Debian, Ubuntu: "
                 f"apt-get install python3-pip), or {self.instead}.")
        arguments = ["download", "--implementation", "cp", "--python-version", "3.11", "--dest", str(into)]
        arguments += [part for tag in MANYLINUX for part in ("--platform", f"manylinux{tag}_{self.machine}")]
        arguments += [part for name in self.names for part in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
        if not pip(arguments, into):
            fail(f"pip could not download {self.title} (see above). To do without, {self.instead}.")

    def _extract(self, wheel, into):
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                wanted = matches(entry.filename, self.keep) and not matches(entry.filename, self.drop)
                if not entry.is_dir() and (wanted or matches(entry.filename, LICENCES)):
                    archive.extract(entry, into)
        wheel.unlink()


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
