"""--nodes across hosts that share nothing but a network. Usage: launch_nodes.py WORLD_PROBE"""

import os
import subprocess
import sys

from launchers import Job, check_worlds, need_programs, need_root, run_tests, skip

PROBE = sys.argv[1]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "netns.sh")
PREFIX = f"troika{os.getpid()}"
RENDEZVOUS = "10.99.0.1:29500"


def node(rank, *flags, where=RENDEZVOUS, nodes=2):
    return Job(["ip", "netns", "exec", f"{PREFIX}-{rank + 1}", PROBE, "--nodes", str(nodes),
                "--node-rank", str(rank), "--ranks-per-node", "2", "--rendezvous", where, *flags])


def ranks_of_two_hosts_meet():
    done = [job.wait() for job in (node(1), node(0))]
    worlds = sorted(done[0].worlds() + done[1].worlds(), key=lambda world: world["rank"])
    check_worlds(worlds, 4, source="troika", local_size=2, nodes=2, store=RENDEZVOUS)
    assert worlds[0]["addresses"] == ["10.99.0.1"] * 2 + ["10.99.0.2"] * 2, worlds


def a_host_that_does_not_come_is_named():
    job = node(0, "--timeout", "1").wait()
    assert job.status == 4, (job.status, job.err)
    assert f"node 1 of 2 has not come to {RENDEZVOUS} after 1 s" in job.err, job.err


def an_address_that_nobody_has_is_named():
    job = node(1, "--timeout", "1", where="10.99.0.77:29500").wait()
    assert job.status == 4, (job.status, job.err)
    assert "no rendezvous at 10.99.0.77:29500 after 1.0 s" in job.err, job.err


def hosts_that_disagree_say_so():
    done = [job.wait() for job in (node(0), node(1, "--ranks-per-node", "3"))]
    for job in done:
        assert job.status == 4, (job.status, job.err)
        assert "node 1 disagrees with node 0" in job.err, job.err


need_root()
need_programs("ip")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([ranks_of_two_hosts_meet, a_host_that_does_not_come_is_named,
               an_address_that_nobody_has_is_named, hosts_that_disagree_say_so])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
