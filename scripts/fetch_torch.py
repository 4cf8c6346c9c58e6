#!/usr/bin/env python3
"""Fetches the pinned LibTorch once and prints the folder it lies in (alone on stdout, for CMake).

wheels.py says how. Where a GPU is present, or with --gpu yes, the CUDA libraries (requirements/torch-cuda.txt) come
along.
"""
import argparse
import os
import platform
import shutil

from cache import cache_root, fail, say
from wheels import Wanted

KEEP_CPU = ["torch/include/*", "torch/lib/*.so*", "nvidia/*/lib/libcudart.so.*", "nvidia/*/lib/libcupti.so.*"]
KEEP_CUDA = ["torch/include/*", "torch/lib/*.so*", "nvidia/*/include/*", "nvidia/*/lib/*.so*"]
DROP = ["torch/lib/libtorch_python.so", "torch/lib/libshm.so"]
DROP_CPU = DROP + ["torch/lib/lib*cuda*.so", "torch/lib/libcaffe2_nvrtc.so", "torch/lib/libtorch_nvshmem.so",
                   "torch/lib/libtorch.so", "torch/lib/libtorch_global_deps.so"]


def gpu_present():
    return os.path.exists("/dev/nvidia0") or shutil.which("nvidia-smi") is not None


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
    wanted = Wanted("LibTorch", names, arguments.machine, keep, drop, "set Torch_DIR to an official LibTorch")
    version = wanted.version_of("torch")
    folder = cache_root() / f"torch-{version}-linux-{arguments.machine}{'-cuda' if gpu else ''}"

    def announce():
        why = "because there is a GPU" if arguments.gpu == "auto" else "as asked for"
        size = f"2.5 GB, with the CUDA libraries {why}" if gpu else "0.6 GB, without CUDA libraries"
        say(f"Downloading LibTorch {version} ({size})")

    if wanted.ready(folder):
        say(f"LibTorch {version} is there already: {folder}; nothing downloaded")
    else:
        wanted.fetch(folder, announce)
        say(f"LibTorch {version} is in {folder}; every download matched its SHA-256")
    print(folder / "torch")


if __name__ == "__main__":
    main()
