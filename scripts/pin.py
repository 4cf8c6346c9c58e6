#!/usr/bin/env python3
"""Writes requirements/NAME.txt from requirements/NAME.in: every wheel by version and SHA-256.

For maintainers, after a change of a .in file: python3 scripts/pin.py (needs pip 24 or newer; asks the
package index, downloads hardly anything).
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
MACHINES = ["x86_64", "aarch64"]
MANYLINUX = ["_2_28", "_2_27", "_2_26", "_2_25", "_2_24", "_2_18", "_2_17", "_2_12", "_2_5", "2014", "2010", "1"]
FILES = {  # name: the Python versions it is for, and whether dependencies are followed
    "torch": (["3.11"], False),
    "torch-cuda": (["3.11"], False),
    "arrow": (["3.11"], False),
    "tests": (["3.11", "3.12", "3.13"], True),
    "bench-gpu": (["3.11", "3.12", "3.13"], True),
    "spark": (["3.11", "3.12", "3.13"], True),
    "lint": (["3.11", "3.12", "3.13"], True),
}
FOR_A_GPU = {"bench-gpu"}
FROM_SOURCE = {"spark"}  # plain Python, the same on every machine
# PyTorch works without them on a machine without a GPU; they would be a third of the download.
WITHOUT = {"triton", "cuda-toolkit", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc", "nvidia-cusolver", "nvidia-nvtx"}


def there(python, machine, target):
    """What has pip resolve for another Python and another machine."""
    tags = [part for tag in MANYLINUX for part in ("--platform", f"manylinux{tag}_{machine}")]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, "--target", target, *tags]


def resolve(name, python, machine, requirements, options):
    """The (name, version, sha256) that pip would install there."""
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
        place = [] if name in FROM_SOURCE else there(python, machine, target)
        output = subprocess.run(command + place + options + requirements, stdout=subprocess.PIPE, check=True).stdout
    for item in json.loads(output)["install"]:
        yield item["metadata"]["name"], item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"]


def pin(name, pythons, follow):
    lines = (REQUIREMENTS / f"{name}.in").read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    requirements = [line for line in lines if line and not line.startswith("#")]
    if follow:
        found = resolve(name, pythons[0], MACHINES[0], requirements, [])
        requirements = [f"{package}=={version}" for package, version, _ in found
                        if name in FOR_A_GPU or package not in WITHOUT]
    hashes = {}
    places = [(machine, python) for machine in MACHINES for python in pythons]
    for machine, python in places[:1] if name in FROM_SOURCE else places:
        for package, version, digest in resolve(name, python, machine, requirements, ["--no-deps"]):
            hashes.setdefault(f"{package.lower()}=={version}", {})[digest] = None
    text = "\n".join(comments) + f"\n# Written by scripts/pin.py from {name}.in. Linux on {' and '.join(MACHINES)}, wheels for CPython {', '.join(pythons)}.\n"
    for requirement in sorted(hashes):
        text += " \\\n    ".join([requirement] + [f"--hash=sha256:{digest}" for digest in hashes[requirement]]) + "\n"
    (REQUIREMENTS / f"{name}.txt").write_text(text)
    print(f"{name}.txt: {len(hashes)} packages", flush=True)


for _name in sys.argv[1:] or FILES:
    pin(_name, *FILES[_name])
