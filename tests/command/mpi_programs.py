"""What there is to build and run programs with MPI: for tests of examples, and of programs in Fortran."""

import functools
import shutil
import sys


@functools.lru_cache(maxsize=None)
def mpis(build):
    """Each MPI that there is a plug-in for in the build folder, with its compilers and what CMake is told to find it; or
    what is just called mpirun. Open MPI is the first."""
    found = []
    for plugin in sorted(build.glob("libtroika_mpi_*.so"), reverse=True):
        flavour = plugin.stem.removeprefix("libtroika_mpi_")
        c, fortran, mpirun = (f"{name}.{flavour}" for name in ("mpicc", "mpifort", "mpirun"))
        if shutil.which(c) and shutil.which(mpirun):
            found.append({"mpirun": mpirun, "mpifort": fortran,
                          "flags": [f"-DMPI_C_COMPILER={c}", f"-DMPI_Fortran_COMPILER={fortran}"]})
        else:
            print(f"left out: programs under {mpirun}, because there is no {c} or no {mpirun}", file=sys.stderr)
    if not found and shutil.which("mpicc") and shutil.which("mpirun"):
        found.append({"mpirun": "mpirun", "mpifort": "mpifort", "flags": []})
    return found
