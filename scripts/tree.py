"""The files of the tree, for the scripts that check them."""
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["troika", "tests", "bench", "examples"]
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def cpp_files():
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in SUFFIXES and path.is_file())


def tracked_files():
    """The files that git tracks or would add, without those that are deleted."""
    done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    return sorted(path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file())
