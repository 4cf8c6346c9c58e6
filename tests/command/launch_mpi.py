"""Ranks that a real mpirun has started find each other, and sum over MPI.

Usage: launch_mpi.py MPIRUN WORLD_PROBE COMM_PROBE PLUGINS [FLAVOUR ...], with the folder of the
plug-ins and the MPIs that there are plug-ins for.
"""

import shutil
import sys

from launchers import Job, check_worlds, environment, need_programs, run_tests

MPIRUN, PROBE, COMM_PROBE, PLUGINS = sys.argv[1:5]
FLAVOURS = sys.argv[5:]
# Open MPI refuses to run as root, and more ranks than cores, unless told.
ENVIRONMENT = environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                          OMPI_MCA_rmaps_base_oversubscribe="1")


def mpirun(size, *command, **changes):
    return Job([MPIRUN, "-n", str(size), *command], {**ENVIRONMENT, **changes})


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
    return Job(command, {**ENVIRONMENT, "TROIKA_PLUGINS": PLUGINS}).wait()


def mpi_carries_sums():
    for flavour in FLAVOURS:
        program = "mpirun." + flavour
        if not shutil.which(program):
            print("left out: there is no", program)
            continue
        said = sums(program, "-n", "3").sums()
        assert [one["rank"] for one in said] == [0, 1, 2], said
        assert all(one["engine"] == "mpi" and one["right"] for one in said), said


need_programs(MPIRUN)
run_tests([ranks_find_each_other, a_shell_in_between_does_not_matter, jobs_side_by_side_do_not_meet,
           the_user_may_name_the_rendezvous, flags_win, a_lone_rank_needs_nobody, mpi_carries_sums])
