"""--nodes across hosts that share nothing but a network.

Usage: launch_nodes.py WORLD_PROBE COMM_PROBE OPERATIONS_PROBE LAB_WIRE
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from launchers import (Job, check_worlds, environment, need_programs, need_root, reserved_port, run, run_tests, said,
                       skip, temporary_folder, wait_for_all)

PROBE, COMM_PROBE, OPERATIONS_PROBE, LAB_WIRE = sys.argv[1:]
TROIKA = os.environ["TROIKA"]
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


def a_stopped_rank_is_named_on_both_hosts():
    """Two ranks a host: shared memory inside, messages between. The host's name is its own."""
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{number + 1}", "unshare", "--uts", "sh", "-c",
                     f"hostname host-{'ab'[number]} && exec {TROIKA} launch --nodes 2 --node-rank {number} "
                     f"--ranks-per-node 2 --rendezvous {RENDEZVOUS} --recorders {folder}/{number} -- "
                     f"{COMM_PROBE} auto 1 100000000 3"], environment(OMP_NUM_THREADS="1")) for number in (0, 1)]
        until = time.monotonic() + 60
        while len(ranks := recordings(folder / "1")) < 2 or min(rank["count"] for rank in ranks) < 10:
            assert all(job.process.poll() is None for job in jobs), [job.wait().err for job in jobs]
            assert time.monotonic() < until, "the job has not begun"
        pid = ranks[1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        done = [job.wait() for job in jobs]
        for job in done:
            assert job.status == 5, (job.status, job.err)
            cause, hint = job.err.splitlines()[-2:]
            assert cause.startswith("troika: rank ") and f"rank 3 (host host-b, pid {pid}) has " in cause, job.err
            assert f"process {pid} is stopped (SIGSTOP" in hint, job.err


def recordings(folder):
    done = run([TROIKA, "inspect", str(folder), "--json"])
    return json.loads(done.out)["ranks"] if done.status == 0 else []


def ranks_of_one_machine_share_memory_whatever_it_is_called():
    """Two launchers on this machine, each with a host name of its own: who shares a host is found out by attaching."""
    where = f"127.0.0.1:{reserved_port()}"
    jobs = [Job(["unshare", "--uts", "sh", "-c",
                 f"hostname host-{'ab'[number]} && exec {TROIKA} launch --nodes 2 --node-rank {number} "
                 f"--ranks-per-node 2 --rendezvous {where} -- {COMM_PROBE} auto 1 3"],
                environment(OMP_NUM_THREADS="1")) for number in (0, 1)]
    sums = [one for job in wait_for_all(jobs) for one in job.sums()]
    assert sorted(one["rank"] for one in sums) == [0, 1, 2, 3], sums
    assert all(one["engine"] == "shm" and one["right"] for one in sums), sums


def operations_of(hosts, engine, expected_name):
    """Every operation among two ranks on each host, of many sizes and types, each element checked."""
    jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{number + 1}", TROIKA, "launch", "--nodes", str(hosts),
                 "--node-rank", str(number), "--ranks-per-node", "2", "--rendezvous", RENDEZVOUS, "--",
                 OPERATIONS_PROBE, engine], environment(OMP_NUM_THREADS="1")) for number in range(hosts)]
    done = wait_for_all(jobs)
    for job in done:
        assert job.status == 0, (job.status, job.out, job.err)
    ranks = [one for job in done for one in said(job.out, "operations")]
    assert sorted(one["rank"] for one in ranks) == list(range(2 * hosts)), ranks
    for one in ranks:
        # 15 checks of a size, one less where nothing is averaged; 4 sizes of each of 3 types.
        assert not one["wrong"] and one["right"] == 4 * (15 + 15 + 14), one
        assert one["engine"] == expected_name, one


def every_operation_goes_between_hosts():
    operations_of(2, "auto", "shm+gloo")
    operations_of(2, "gloo", "gloo")


def every_operation_goes_between_three_hosts_over_a_slow_link():
    operations_of(3, "auto", "shm+gloo")


MEGABYTES, ROUNDS = 8, 3


def bytes_sent(host):
    """What a host has put on its network so far."""
    command = ["ip", "netns", "exec", f"{PREFIX}-{host}",
               "cat", "/sys/class/net/eth0/statistics/tx_bytes"]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout)


def sums_of_two_hosts(engine):
    """Of two ranks on each host: the engine, the seconds of one sum, and what a host sent for it."""
    before = bytes_sent(1)
    jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{rank + 1}", TROIKA, "launch", "--nodes", "2",
                 "--node-rank", str(rank), "--ranks-per-node", "2", "--rendezvous", RENDEZVOUS,
                 "--", COMM_PROBE, engine, str(MEGABYTES), str(ROUNDS)]) for rank in (0, 1)]
    sums = [one for job in jobs for one in job.wait().sums()]
    assert sorted(one["rank"] for one in sums) == [0, 1, 2, 3], sums
    assert all(one["right"] for one in sums), sums
    sent = (bytes_sent(1) - before) / ROUNDS / (MEGABYTES << 20)
    return sums[0]["engine"], max(one["seconds"] for one in sums), sent


def shared_memory_inside_hosts_saves_half_of_the_network():
    engine, seconds, sent = sums_of_two_hosts("auto")
    assert engine == "shm+gloo", engine
    # 2 (H-1)/H N of a host, of 2 hosts; the headers of the network on top.
    assert 1.0 <= sent < 1.15, sent
    flat, flat_seconds, flat_sent = sums_of_two_hosts("gloo")
    assert flat == "gloo", flat
    # Each of 4 ranks sends 2 N / 4 to each of the two that are on the other host.
    assert 2.0 <= flat_sent < 2.3, flat_sent
    print(f"sums of {MEGABYTES} MiB: shm+gloo {seconds:.3f} s, {sent:.2f} x that sent by a host; "
          f"gloo {flat_seconds:.3f} s, {flat_sent:.2f} x")


need_root()
need_programs("ip", "unshare")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([ranks_of_two_hosts_meet, a_host_that_does_not_come_is_named,
               an_address_that_nobody_has_is_named, hosts_that_disagree_say_so,
               a_stopped_rank_is_named_on_both_hosts, every_operation_goes_between_hosts,
               ranks_of_one_machine_share_memory_whatever_it_is_called])
    subprocess.run([LAB, "down", PREFIX], timeout=60, check=True)
    # A link of 5 ms and 200 Mbit/s each way.
    if not os.path.exists("/dev/net/tun"):
        print("left out: the shaped link needs /dev/net/tun")
    else:
        subprocess.run([LAB, "up", PREFIX, "3", LAB_WIRE, "5", "200"], timeout=60, check=True)
        run_tests([shared_memory_inside_hosts_saves_half_of_the_network,
                   every_operation_goes_between_three_hosts_over_a_slow_link])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
