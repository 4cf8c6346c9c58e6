"""mpirun across hosts that share nothing but a network: shared memory inside each, MPI between.

Usage: launch_mpi_hosts.py COMM_PROBE OPERATIONS_PROBE PLUGINS [FLAVOUR ...], with the folder of the plug-ins and the MPIs
that there are plug-ins for.
"""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import time

from launchers import Job, environment, need_programs, need_root, open_mpi, run, run_tests, said, skip, temporary_folder
from slow import slow

COMM_PROBE, OPERATIONS_PROBE, PLUGINS = sys.argv[1:4]
FLAVOURS = sys.argv[4:]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "netns.sh")
PREFIX = f"troika{os.getpid()}"
# What mpirun takes for ssh: flags, the host, a command line.
AGENT = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
number=${{1##*.}}
shift
exec ip netns exec {PREFIX}-$number unshare --uts sh -c "hostname host-$number; $*"
"""


class Mpi:
    """The mpirun of one MPI, which starts two ranks on each of two hosts."""

    def __init__(self, flavour, folder):
        self.flavour = flavour
        self.folder = folder
        self.agent = folder / "agent"
        self.agent.write_text(AGENT)
        self.agent.chmod(self.agent.stat().st_mode | stat.S_IXUSR)

    def start(self, *command, **variables):
        own = dict(MASTER_ADDR="10.99.0.1", OMP_NUM_THREADS="1", TROIKA_PLUGINS=PLUGINS, **variables)
        hosts = "10.99.0.1:2,10.99.0.2:2"
        words = {
            "openmpi": ["mpirun.openmpi", "-n", "4", "--host", hosts, "--mca", "plm_rsh_agent", self.agent,
                        "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0",
                        "--mca", "oob_tcp_if_include", "eth0",
                        *(word for name in own for word in ("-x", name))],
            "mpich": ["mpirun.mpich", "-n", "4", "-hosts", hosts, "-launcher", "ssh", "-launcher-exec", self.agent,
                      "-iface", "eth0"],
        }[self.flavour]
        if self.flavour == "mpich":
            own["UCX_TLS"] = "tcp,self"  # else it reads the memory of the other host, which is this very machine
        return Job([self.agent, "10.99.0.1", "exec", *words, *command], environment(**open_mpi(), **own))


def with_mpi(test, *flavours):
    """`test` with each of these that can be tried; its name stays."""
    def tests():
        for flavour in flavours:
            if flavour not in FLAVOURS:
                print(f"left out: the plug-in for {flavour} was not built")
                continue
            need_programs(f"mpirun.{flavour}")
            with temporary_folder() as folder:
                test(Mpi(flavour, pathlib.Path(folder)))
    tests.__name__ = test.__name__
    return tests


def every_operation_goes_between_hosts(mpi):
    for engine, name in (("auto", "shm+mpi"), ("mpi", "mpi")):
        job = mpi.start(OPERATIONS_PROBE, engine).wait()
        assert job.status == 0, (mpi.flavour, engine, job.status, job.out, job.err)
        ranks = said(job.out, "operations")
        assert [one["rank"] for one in ranks] == list(range(4)), (ranks, job.err)
        for one in ranks:
            assert not one["wrong"] and one["right"] == 4 * (15 + 15 + 14), (mpi.flavour, one)
            assert one["engine"] == name, (mpi.flavour, one)


def when_under_way(mpi, rank, act):
    """A job without end, once all have done some of it, then `act` with a rank's pid; that pid and the ended job."""
    recorders = mpi.folder / f"recorders-{rank}"  # as in a folder that all hosts have
    job = mpi.start(COMM_PROBE, "auto", "1", "100000000", "3", TROIKA_RECORDERS=str(recorders))
    try:
        until = time.monotonic() + 60
        while len(ranks := recordings(recorders)) < 4 or min(each["count"] for each in ranks) < 10:
            assert job.process.poll() is None, job.wait().err
            assert time.monotonic() < until, "the job has not begun"
        pid = ranks[rank]["pid"]
        act(pid)
        return pid, job.wait()
    except BaseException:
        job.process.terminate()  # mpirun ends its ranks
        raise


def a_stopped_rank_is_named(mpi):
    """By its neighbour, who looks at its process; a program that fails then ends the job. Rank 0 keeps the store."""
    for rank, host in ((3, "host-2"), (0, "host-1")):
        pid, job = when_under_way(mpi, rank, lambda pid: os.kill(pid, signal.SIGSTOP))
        # Hydra kills the other ranks, and may report theirs or a failure of its own instead: several end at once here.
        assert job.status == 4 or mpi.flavour == "mpich" and job.status, (mpi.flavour, job.status, job.err)
        matches(f"rank {rank} \\(host {host}, pid {pid}\\) has (not )?entered .* on axis world", job.err)
        matches(f"process {pid} is stopped \\(SIGSTOP", job.err)


def a_killed_rank_ends_the_job(mpi):
    """As mpirun does it: its own message is the last to be read, and may be the only one."""
    pid, job = when_under_way(mpi, 3, lambda pid: os.kill(pid, signal.SIGKILL))
    assert job.status not in (None, 0), (mpi.flavour, job.status, job.err)
    text = job.err + job.out
    if mpi.flavour == "openmpi":
        matches(f"process rank 3 with PID {pid} on node 10.99.0.2 exited on signal 9", text)
    else:
        # Hydra kills the other rank of that host, too, and then names the first of them that has not ended well.
        matches("RUNNING AT 10.99.0.2\n.*EXIT CODE: 9", text)


def matches(pattern, text):
    assert re.search(pattern, text), (pattern, text)


def recordings(folder):
    done = run([os.environ["TROIKA"], "inspect", str(folder), "--json"])
    return json.loads(done.out)["ranks"] if done.status == 0 else []


need_root()
need_programs("ip", "unshare")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([with_mpi(every_operation_goes_between_hosts, "openmpi", "mpich"),
               with_mpi(a_stopped_rank_is_named, "openmpi"), with_mpi(a_killed_rank_ends_the_job, "openmpi"),
               slow(with_mpi(a_stopped_rank_is_named, "mpich")), slow(with_mpi(a_killed_rank_ends_the_job, "mpich"))])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
