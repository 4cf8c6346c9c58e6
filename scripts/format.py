#!/usr/bin/env python3
"""Lays every C++ file out as .clang-format says; with --check only names the lines that are not."""
import subprocess
import sys
from pathlib import Path

from tree import ROOT, cpp_files


def main():
    scripts = Path(__file__).resolve().parent
    environment = subprocess.run([sys.executable, str(scripts / "python_env.py"), "lint"], stdout=subprocess.PIPE, text=True)
    if environment.returncode:
        sys.exit(environment.returncode)
    tool = Path(environment.stdout.strip()).parent / "clang-format"
    mode = ["--dry-run", "--Werror"] if "--check" in sys.argv[1:] else ["-i"]
    files = [str(path.relative_to(ROOT)) for path in cpp_files()]
    result = subprocess.run([tool, *mode, *files], cwd=ROOT)
    if result.returncode:
        sys.exit("format: the files above are not laid out as .clang-format says; run make format")
    print(f"-- Format: {len(files)} files {'are laid out as .clang-format says' if '--check' in sys.argv[1:] else 'done'}")


if __name__ == "__main__":
    main()
