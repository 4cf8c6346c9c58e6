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

from command import RECIPE, numbers_of, slow, train_arguments, write_text
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


@slow
def every_operation_goes_between_three_hosts_over_a_slow_link():
    operations_of(3, "auto", "shm+gloo")


def the_benchmark_goes_between_hosts():
    """`troika bench comm` of every operation, whose results it checks, on one engine after another; node 0 alone tells
    of them."""
    sizes = (4, 65536)
    jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{number + 1}", TROIKA, "bench", "comm", "--nodes", "2",
                 "--node-rank", str(number), "--ranks-per-node", "2", "--rendezvous", RENDEZVOUS, "--op", "all",
                 "--sizes", ",".join(map(str, sizes)), "--budget", "0.02", "--json"],
                environment(OMP_NUM_THREADS="1")) for number in (0, 1)]
    done = wait_for_all(jobs)
    for job in done:
        assert job.status == 0, (job.status, job.out, job.err)
    assert done[1].out == "", done[1].out
    told = json.loads(done[0].out)
    assert told["ranks"] == 4 and told["checked"], told
    rows = told["results"]
    left_out = {one["engine"]: one["reason"] for one in told["left_out"]}
    assert {row["engine"] for row in rows} == {"gloo", "shm+gloo"}, rows
    assert "shm" in left_out and not {"auto", "gloo"} & set(left_out), left_out
    for engine in ("gloo", "shm+gloo"):
        mine = [row for row in rows if row["engine"] == engine]
        # An element each is the least of an operation that gives every rank a part.
        assert {row["bytes"] for row in mine if row["operation"] == "all_reduce"} == set(sizes), mine
        assert {row["operation"] for row in mine} == set(told["bus_bandwidth_formula"]), mine
        assert all(row["seconds"] > 0 for row in mine), mine


BETWEEN_HOSTS = "compress.only=between_hosts"
LAYOUTS = (
    ("parallel.data=2", "parallel.tensor=2", "parallel.zero_stage=1"),
    ("parallel.tensor=4",),
    ("parallel.data=4", "parallel.zero_stage=3", "parallel.shard=2", "parallel.activation_checkpoint=full"),
    ("parallel.data=2", "parallel.pipeline=2", "parallel.pipeline_schedule=zb-v", "parallel.zero_stage=3"),
)


def training(folder, sets, name, *flags):
    """`troika train` of a small model in fp64."""
    sets = ("model.layers=4", "model.heads=4", "train.precision=fp64", "train.micro_batch_size=1", f"name={name}", *sets)
    return ["env", "-C", folder, TROIKA, *train_arguments(sets), *flags]


@slow
def a_model_is_the_same_on_one_host_and_on_two():
    """Two ranks a host: every layout is as on one host, where it is compared with a single rank (tests/parity)."""
    with temporary_folder() as folder:
        folder = pathlib.Path(folder)
        (folder / "recipe.toml").write_text(RECIPE)
        write_text(folder / "text", 12)
        for number, sets in enumerate(LAYOUTS):
            one = trained(folder, sets, f"one-{number}", 1)
            # Shared memory inside, messages between: sums are reduced host by host.
            near = trained(folder, sets, f"two-{number}", 2)
            assert "engine shm+gloo" in near.err and "engine shm+gloo" not in one.err, (near.err, one.err)
            assert largest_difference(one, near) < 1e-12, (sets, largest_difference(one, near))
            # In the order of ranks: the same bits.
            ordered = ("train.deterministic=true", *sets)
            runs = [trained(folder, ordered, f"ordered-{hosts}-{number}", hosts).run for hosts in (1, 2)]
            for name in ("model.safetensors", "dump/step-3/gradients.safetensors"):
                assert len({(run_folder / name).read_bytes() for run_folder in runs}) == 1, (sets, name)


def only_what_goes_between_hosts_is_compressed():
    """Where all of it is sent it is no compression."""
    with temporary_folder() as folder:
        folder = pathlib.Path(folder)
        (folder / "recipe.toml").write_text(RECIPE)
        write_text(folder / "text", 12)
        whole, every, some = (
            trained(folder, sets, name, 2)
            for name, sets in (("whole", ()), ("every", ("compress.kind=top_k", "compress.fraction=1", BETWEEN_HOSTS)),
                               ("some", ("compress.kind=top_k", "compress.fraction=0.1", BETWEEN_HOSTS))))
        assert largest_difference(whole, every) < 1e-12, largest_difference(whole, every)
        assert largest_difference(whole, some) > 1e-6, largest_difference(whole, some)


def trained(folder, sets, name, hosts):
    """The job of the first host, and where its run is."""
    sets = ("debug.dump_steps=[1, 3]", *sets)
    one_thread = environment(OMP_NUM_THREADS="1")
    if hosts == 1:
        jobs = [Job(training(folder, sets, name, "--ranks", "4"), one_thread)]
    else:
        jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{host + 1}",
                     *training(folder, sets, name, "--nodes", str(hosts), "--node-rank", str(host),
                               "--ranks-per-node", "2", "--rendezvous", RENDEZVOUS)], one_thread)
                for host in range(hosts)]
    for job in wait_for_all(jobs):
        assert job.status == 0, (sets, job.status, job.err)
    jobs[0].run = folder / "runs" / name
    return jobs[0]


def largest_difference(one, other):
    """Of gradients and parameters."""
    largest = 0
    for name in ("dump/step-1/gradients.safetensors", "dump/step-3/gradients.safetensors", "model.safetensors"):
        found, expected = (numbers_of(job.run / name) for job in (one, other))
        assert {key: len(value) for key, value in found.items()} == {key: len(value) for key, value in expected.items()}
        largest = max(largest, *(abs(a - b) for key in found for a, b in zip(found[key], expected[key])))
    return largest


RESTARTING = ("train.deterministic=true", "train.steps=400", "train.evaluate_every_steps=0", "checkpoint.every_steps=5",
              "elastic.max_restarts=2")


def host_of_a_job(folder, host, name, *flags):
    """The launcher of one of two hosts, which starts its ranks again."""
    return Job(["ip", "netns", "exec", f"{PREFIX}-{host + 1}",
                *training(folder, RESTARTING, name, "--nodes", "2", "--node-rank", str(host), "--ranks-per-node", "1",
                          "--rendezvous", RENDEZVOUS, *flags)], environment(OMP_NUM_THREADS="1"))


def wait_for_checkpoint(folder, name, jobs):
    until = time.monotonic() + 60
    while len(list((folder / "runs" / name).glob("checkpoints/step-*/manifest.json"))) < 2:
        assert all(job.process.poll() is None for job in jobs), [job.wait().err for job in jobs]
        assert time.monotonic() < until, "no checkpoint"
        time.sleep(0.02)


def a_death_on_one_host_starts_all_again():
    """A rank that is killed, and then a launcher, which has to be started again: the bits of an undisturbed run."""
    with temporary_folder() as folder:
        folder = pathlib.Path(folder)
        (folder / "recipe.toml").write_text(RECIPE)
        write_text(folder / "text", 12)
        done = wait_for_all([host_of_a_job(folder, host, "whole") for host in (0, 1)])
        assert all(job.status == 0 for job in done), [job.err for job in done]

        jobs = [host_of_a_job(folder, host, "rank") for host in (0, 1)]
        wait_for_checkpoint(folder, "rank", jobs)
        launcher = jobs[1].process.pid
        children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        pid = next(int(child) for child in children if b"\0RANK=" in pathlib.Path(f"/proc/{child}/environ").read_bytes())
        os.kill(pid, signal.SIGKILL)
        for job in wait_for_all(jobs):
            assert job.status == 0, (job.status, job.err)
            assert f"pid {pid}) was killed by signal 9 (SIGKILL)" in job.err, job.err
            assert "restart 1 of 2" in job.err, job.err

        jobs = [host_of_a_job(folder, host, "launcher") for host in (0, 1)]
        wait_for_checkpoint(folder, "launcher", jobs)
        jobs[1].process.kill()
        jobs[1].wait()
        jobs[1] = host_of_a_job(folder, 1, "launcher")
        for job in wait_for_all(jobs):
            assert job.status == 0, (job.status, job.err)
        assert "node 1 of 2 does not answer" in jobs[0].err and "restart 1 of 2" in jobs[0].err, jobs[0].err

        for name in ("rank", "launcher"):
            models = [(folder / "runs" / run / "model.safetensors").read_bytes() for run in ("whole", name)]
            assert models[0] == models[1], name
            lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(1, 401)), name


def a_host_that_does_not_come_back_is_done_without():
    """With min_data the other host goes on alone, with the same global batch: numbers within the bounds of fp64."""
    with temporary_folder() as folder:
        folder = pathlib.Path(folder)
        (folder / "recipe.toml").write_text(RECIPE)
        write_text(folder / "text", 12)
        patience = ("--set", "comm.rendezvous_timeout_seconds=4")
        for fewest, name in ((1, "alone"), (2, "not")):
            # parallel.data is the most that there are.
            flags = ("--set", f"elastic.min_data={fewest}", "--set", "parallel.data=2", *patience)
            jobs = [host_of_a_job(folder, host, name, *flags) for host in (0, 1)]
            wait_for_checkpoint(folder, name, jobs)
            jobs[1].process.kill()
            jobs[1].wait()
            job = jobs[0].wait()
            if fewest == 1:
                assert job.status == 0, (job.status, job.err)
                assert "node 1 of 2 has not come back: going on with 1 rank of 2" in job.err, job.err
            else:
                assert job.status == 4, (job.status, job.err)
                assert "the others cannot go on alone: " in job.err and "min_data = 2: 1 rank make" in job.err, job.err
        whole = wait_for_all([host_of_a_job(folder, host, "whole") for host in (0, 1)])
        assert all(job.status == 0 for job in whole), [job.err for job in whole]
        found, expected = (numbers_of(folder / "runs" / name / "model.safetensors") for name in ("alone", "whole"))
        for key, values in expected.items():
            bound = 1e-10 * max(abs(value) for value in values) + 1e-12
            assert all(abs(a - b) <= bound for a, b in zip(found[key], values)), key
        lines = (folder / "runs/alone/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 401))


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
               a_stopped_rank_is_named_on_both_hosts, a_model_is_the_same_on_one_host_and_on_two,
               only_what_goes_between_hosts_is_compressed, a_death_on_one_host_starts_all_again,
               a_host_that_does_not_come_back_is_done_without, every_operation_goes_between_hosts,
               the_benchmark_goes_between_hosts,
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
