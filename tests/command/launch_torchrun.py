"""Ranks that a real torchrun has started find each other.
Usage: launch_torchrun.py PYTHON WORLD_PROBE, with a Python that has PyTorch."""

import subprocess
import sys

from launchers import Job, check_worlds, environment, reserved_port, run_tests, skip

PYTHON, PROBE = sys.argv[1:3]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--no-python"]


def the_agent_keeps_the_store():
    worlds = Job(TORCHRUN + ["--standalone", "--nproc-per-node", "3", PROBE]).wait().worlds()
    check_worlds(worlds, 3, source="torchrun", local_size=3, nodes=1, node_rank=0)


def ranks_of_two_agents_meet():
    # Two nodes, here on one host. Port 0 would be another one for each.
    port = str(reserved_port())
    nodes = [Job(TORCHRUN + ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2",
                             "--master-addr", "127.0.0.1", "--master-port", port, PROBE])
             for node in (0, 1)]
    done = [node.wait() for node in nodes]
    worlds = sorted(done[0].worlds() + done[1].worlds(), key=lambda world: world["rank"])
    check_worlds(worlds, 4, source="torchrun", local_size=2, nodes=2)


def kubernetes_variables():
    """One process a pod: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and nothing else."""
    port = str(reserved_port())
    pods = [Job([PROBE], environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="localhost",
                                     MASTER_PORT=port)) for rank in (1, 0)]
    done = [pod.wait() for pod in pods]
    worlds = sorted(done[0].worlds() + done[1].worlds(), key=lambda world: world["rank"])
    check_worlds(worlds, 2, source="torchrun", local_size=2, nodes=1)


run_tests([kubernetes_variables])
if not PYTHON:
    skip("no Python with PyTorch is configured (TROIKA_TEST_PYTHON)")
if subprocess.run([PYTHON, "-c", "import torch.distributed.run"], env=environment(),
                  stderr=subprocess.DEVNULL).returncode != 0:
    skip(f"{PYTHON} has no PyTorch")
run_tests([the_agent_keeps_the_store, ranks_of_two_agents_meet])
