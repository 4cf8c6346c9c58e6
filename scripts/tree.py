"""The C++ files of the tree, for the scripts that check them."""
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["troika", "tests", "bench", "examples"]
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def cpp_files():
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in SUFFIXES and path.is_file())
