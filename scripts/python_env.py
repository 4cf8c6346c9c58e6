#!/usr/bin/env python3
"""Makes, once, the Python environment NAME (tests, bench-gpu, spark or lint), and prints its interpreter on stdout.

It holds the wheels of requirements/NAME.txt, each checked by its SHA-256. Nothing that troika itself runs
needs Python.
"""
import argparse
import shutil
import subprocess
import sys
import tempfile

from cache import REQUIREMENTS, cache_root, digest, fail, has_module, locked, pins, pip, say

CONTENTS = {  # name: what it holds, the size of the download, and a line of Python that proves it
    "tests": ("PyTorch, transformers, peft, tensorboard, pyarrow, moto", "2 GB", "import torch, transformers, peft, tensorboard, pyarrow, moto"),
    "bench-gpu": ("PyTorch for GPUs", "3 GB", "import torch, triton, safetensors"),
    "spark": ("Spark", "430 MB", "import pyspark"),
    "lint": ("clang-format, clang-tidy", "50 MB", "import clang_format, clang_tidy"),
}


def make(name, folder, root):
    if not has_module("venv, ensurepip"):
        fail(f"{sys.executable} cannot make virtual environments. Install them (Debian, Ubuntu: apt-get install python3-venv).")
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, stdout=sys.stderr)
    python = str(folder / "bin/python")
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=root) as scratch:
        if not pip(["install", "--no-compile", "-r", str(REQUIREMENTS / f"{name}.txt")], scratch, python):
            fail(f"pip could not install requirements/{name}.txt (see above).")
    if subprocess.run([python, "-c", CONTENTS[name][2]]).returncode:
        fail(f"the Python packages in {folder} do not load (see above).")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(CONTENTS))
    name = parser.parse_args().name
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version not in ("3.11", "3.12", "3.13"):
        fail(f"requirements/{name}.txt is pinned for Python 3.11 to 3.13; {sys.executable} is {version}. Set PYTHON=python3.12.")
    root = cache_root()
    folder = root / f"python{version}-{digest(pins(name))[:12]}"
    complete = folder / "complete"
    contents, size, _ = CONTENTS[name]
    if complete.exists():
        say(f"Python environment for {name} is there already: {folder}; nothing downloaded")
    else:
        with locked(folder):
            if not complete.exists():
                say(f"Making the Python environment for {name} ({contents}; {size} to download) in {folder}")
                make(name, folder, root)
                complete.touch()
                say(f"Python environment for {name} is ready; every download matched its SHA-256")
    print(folder / "bin/python")


if __name__ == "__main__":
    main()
