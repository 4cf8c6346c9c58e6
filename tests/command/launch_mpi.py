"""Ranks that a real mpirun has started find each other, and sum over MPI.

Usage: launch_mpi.py MPIRUN WORLD_PROBE COMM_PROBE PLUGINS [FLAVOUR ...], with the folder of the
plug-ins and the MPIs that there are plug-ins for.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

from launchers import Job, check_worlds, environment, need_programs, open_mpi, run_tests

MPIRUN, PROBE, COMM_PROBE, PLUGINS = sys.argv[1:5]
FLAVOURS = sys.argv[5:]
# Open MPI refuses to run as root, and more ranks than cores, unless told.


def mpirun(size, *command, **changes):
    return Job([MPIRUN, "-n", str(size), *command], environment(**open_mpi(), **changes))


def ranks_find_each_other():
    worlds = mpirun(3, PROBE).wait().worlds()
    check_worlds(worlds, 3, source="mpi", local_size=3, nodes=1)
    assert [world["local_rank"] for world in worlds] == [0, 1, 2]
    assert worlds[0]["store"].startswith("127.0.0.1:2")  # 20000 to 29999


def a_shell_in_between_does_not_matter():
    check_worlds(mpirun(2, "sh", "-c", f"{PROBE}; true").wait().worlds(), 2, source="mpi")


def jobs_side_by_side_do_not_meet():
    jobs = [mpirun(2, PROBE), mpirun(2, PROBE)]
    for job in jobs:
        check_worlds(job.wait().worlds(), 2)


def the_user_may_name_the_rendezvous():
    # The port of a job that has just ended is free.
    port = mpirun(2, PROBE).wait().worlds()[0]["store"].split(":")[1]
    worlds = mpirun(2, PROBE, MASTER_ADDR="localhost", MASTER_PORT=port).wait().worlds()
    check_worlds(worlds, 2, store=f"localhost:{port}")


def flags_win():
    job = mpirun(1, PROBE, "--ranks", "2").wait()
    check_worlds(job.worlds(), 2, source="troika")


def a_lone_rank_needs_nobody():
    check_worlds(mpirun(1, PROBE).wait().worlds(), 1, source="mpi")


def sums(*command, engine="mpi"):
    command = [*command, COMM_PROBE, engine, "4", "3"]
    return Job(command, environment(**open_mpi(), TROIKA_PLUGINS=PLUGINS)).wait()


def launchers():
    """The mpirun of each MPI that there is a plug-in for."""
    for flavour in ("openmpi", "mpich"):
        if flavour not in FLAVOURS:
            print(f"left out: the plug-in for {flavour} was not built")
    for flavour in FLAVOURS:
        program = "mpirun." + flavour
        if shutil.which(program):
            yield program
        else:
            print("left out: there is no", program)


def mpi_carries_sums():
    for program in launchers():
        said = sums(program, "-n", "3").sums()
        assert [one["rank"] for one in said] == [0, 1, 2], said
        assert all(one["engine"] == "mpi" and one["right"] for one in said), said


def the_benchmark_measures_mpi():
    for program in launchers():
        with tempfile.TemporaryDirectory(prefix="troika-test-") as folder:
            measure_mpi(program, pathlib.Path(folder) / "comm.svg")


def measure_mpi(program, plot):
    command = [program, "-n", "2", os.environ["TROIKA"], "bench", "comm", "--engine", "mpi", "--op",
               "all_reduce,exchange", "--sizes", "4,64K", "--budget", "0", "--json", "--plot", str(plot)]
    job = Job(command, environment(**open_mpi(), TROIKA_PLUGINS=PLUGINS)).wait()
    assert job.status == 0, f"{command}: status {job.status}\n{job.out}{job.err}"
    results = json.loads(job.out)["results"]  # printed once
    assert [(one["operation"], one["bytes"]) for one in results] == [
        ("all_reduce", 4), ("all_reduce", 65536), ("exchange", 4), ("exchange", 65536)], results
    assert all(one["engine"] == "mpi" and one["ranks"] == 2 for one in results), results
    assert all(0 < one["fastest_seconds"] <= one["seconds"] for one in results), results
    picture = plot.read_text()
    assert ">mpi<" in picture and ">all_reduce, 2 ranks<" in picture, picture


need_programs(MPIRUN)
run_tests([ranks_find_each_other, a_shell_in_between_does_not_matter, jobs_side_by_side_do_not_meet,
           the_user_may_name_the_rendezvous, flags_win, a_lone_rank_needs_nobody, mpi_carries_sums,
           the_benchmark_measures_mpi])
