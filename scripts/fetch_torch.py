#!/usr/bin/env python3
"""Fetches the pinned LibTorch once and prints the folder it lies in (alone on stdout, for CMake).

The wheels of requirements/torch.txt are downloaded by pip, which checks their SHA-256, and only what a
C++ program needs is kept: headers, libraries, licences. Where a GPU is present, or with --gpu yes, the CUDA
libraries (requirements/torch-cuda.txt) come along. The result is moved into the cache in one step, so a folder that
is there is complete.
"""
import argparse
import fnmatch
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from cache import REQUIREMENTS, cache_root, digest, fail, has_module, locked, pins, pip, say

MANYLINUX = ["_2_28", "_2_27", "_2_25", "_2_18", "_2_17", "_2_12", "_2_5", "2014", "2010", "1"]

LICENCES = ["*.dist-info/licenses/*", "*.dist-info/LICENSE*"]
KEEP_CPU = ["torch/include/*", "torch/lib/*.so*", "nvidia/*/lib/libcudart.so.*", "nvidia/*/lib/libcupti.so.*"]
KEEP_CUDA = ["torch/include/*", "torch/lib/*.so*", "nvidia/*/include/*", "nvidia/*/lib/*.so*"]
DROP = ["torch/lib/libtorch_python.so", "torch/lib/libshm.so"]
DROP_CPU = DROP + ["torch/lib/lib*cuda*.so", "torch/lib/libcaffe2_nvrtc.so", "torch/lib/libtorch_nvshmem.so",
                   "torch/lib/libtorch.so", "torch/lib/libtorch_global_deps.so"]


def gpu_present():
    return os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi") is not None


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def download(names, machine, into):
    if not has_module("pip"):
        fail(f"{sys.executable} has no pip, which downloads LibTorch. Install it (Debian, Ubuntu: "
             "apt-get install python3-pip), or set Torch_DIR to an official LibTorch.")
    arguments = ["download", "--implementation", "cp", "--python-version", "3.11", "--dest", str(into)]
    arguments += [part for tag in MANYLINUX for part in ("--platform", f"manylinux{tag}_{machine}")]
    arguments += [part for name in names for part in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
    if not pip(arguments, into):
        fail("pip could not download LibTorch (see above). Set Torch_DIR to an official LibTorch to do without.")


def extract(wheel, into, keep, drop):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            wanted = matches(entry.filename, keep) and not matches(entry.filename, drop)
            if not entry.is_dir() and (wanted or matches(entry.filename, LICENCES)):
                archive.extract(entry, into)
    wheel.unlink()


def fetch(folder, names, machine, stamp, keep, drop):
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch:
        wheels, fresh = Path(scratch) / "wheels", Path(scratch) / "fresh"
        wheels.mkdir()
        download(names, machine, wheels)
        for wheel in sorted(wheels.glob("*.whl")):
            extract(wheel, fresh, keep, drop)
        (fresh / "pins.sha256").write_text(stamp)
        if folder.exists():  # fetched for other pins
            folder.rename(Path(scratch) / "outdated")
        fresh.rename(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument("--gpu", default="auto", choices=["auto", "yes", "no"], help="take the CUDA libraries too")
    arguments = parser.parse_args()
    if platform.system() != "Linux":
        fail("LibTorch is fetched for Linux only. Set Torch_DIR to an official LibTorch.")

    gpu = gpu_present() if arguments.gpu == "auto" else arguments.gpu == "yes"
    names = ["torch", "torch-cuda"] if gpu else ["torch"]
    keep, drop = (KEEP_CUDA, DROP) if gpu else (KEEP_CPU, DROP_CPU)
    version = next(pin.split("==")[1] for pin in pins("torch") if pin.startswith("torch=="))
    stamp = digest(sorted(pins(*names)), keep, drop)
    folder = cache_root() / f"torch-{version}-linux-{arguments.machine}{'-cuda' if gpu else ''}"

    def ready():
        marker = folder / "pins.sha256"
        return marker.exists() and marker.read_text() == stamp

    if ready():
        say(f"LibTorch {version} is there already: {folder}; nothing downloaded")
    else:
        with locked(folder):
            if not ready():
                why = "because there is a GPU" if arguments.gpu == "auto" else "as asked for"
                size = f"2.5 GB, with the CUDA libraries {why}" if gpu else "0.6 GB, without CUDA libraries"
                say(f"Downloading LibTorch {version} ({size})")
                fetch(folder, names, arguments.machine, stamp, keep, drop)
                say(f"LibTorch {version} is in {folder}; every download matched its SHA-256")
    print(folder / "torch")


if __name__ == "__main__":
    main()
