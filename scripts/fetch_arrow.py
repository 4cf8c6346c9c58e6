#!/usr/bin/env python3
"""Fetches the pinned Apache Arrow once and prints the folder it lies in (alone on stdout, for CMake).

Its C++ headers and libraries are in the wheel of pyarrow (requirements/arrow.txt); wheels.py says how they are taken.
"""
import argparse
import platform

from cache import cache_root, fail, say
from wheels import Wanted

KEEP = ["pyarrow/include/arrow/*", "pyarrow/include/parquet/*", "pyarrow/libarrow.so.*", "pyarrow/libparquet.so.*",
        "pyarrow/libarrow_s3.so.*", "pyarrow/libarrow_flight.so.*"]
DROP = ["pyarrow/include/arrow/python/*"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default=platform.machine(), choices=["x86_64", "aarch64"])
    arguments = parser.parse_args()
    if platform.system() != "Linux":
        fail("Apache Arrow is fetched for Linux only. Set TROIKA_ARROW=0 to build without tables.")
    wanted = Wanted("Apache Arrow", ["arrow"], arguments.machine, KEEP, DROP, "set TROIKA_ARROW=0 to build without tables")
    version = wanted.version_of("pyarrow")
    folder = cache_root() / f"arrow-{version}-{wanted.stamp[:8]}-linux-{arguments.machine}"  # what is kept of it: checkouts may differ
    if wanted.ready(folder):
        say(f"Apache Arrow {version} is there already: {folder}; nothing downloaded")
    else:
        wanted.fetch(folder, lambda: say(f"Downloading Apache Arrow {version} (55 MB)"))
        say(f"Apache Arrow {version} is in {folder}; every download matched its SHA-256")
    print(folder / "pyarrow")


if __name__ == "__main__":
    main()
