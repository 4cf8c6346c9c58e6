"""`troika simulate sync` held against the runs that it stands for: hosts of their own behind links of a rate and a latency.

Usage: launch_simulated.py LAB_WIRE [DELAY_MS RATE_MBIT]

Passes wait for a declared time, beside which what they compute counts for nothing, so that this machine's speed does not matter.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from command import slow, train_arguments
from launchers import Job, environment, need_programs, need_root, run_tests, skip, temporary_folder, wait_for_all

LAB_WIRE, *link = sys.argv[1:]
TROIKA = os.environ["TROIKA"]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "netns.sh")
PREFIX = f"simulated{os.getpid()}"
RENDEZVOUS = "10.99.0.1:29500"
WORKERS, SERVERS = 3, 1
DELAY_MS, RATE_MBIT = map(float, link or (5, 50))
PASS_SECONDS = 0.2
WITHIN, MOST_STALENESS_APART = 0.15, 0.3
RUNS, SEEDS = 3, 9
# On the wire, beside the values: TCP, HTTP/2, what workers report. Frames are of 9000 bytes.
MOST_FRAMING = 0.04
MODEL = (64, 512, 512, 8)
RECIPE = f"""
name = "held"
[model]
kind = "mlp"
input_dim = {MODEL[0]}
hidden_dims = {list(MODEL[1:-1])}
output_dim = {MODEL[-1]}
[data]
kind = "random"
[train]
steps = 8
global_batch_size = {WORKERS}
micro_batch_size = 1
precision = "fp32"
evaluate_every_steps = 0
[optimizer]
kind = "sgd"
lr = 0.001
[observe]
tensorboard = false
"""
# What `ip netns exec` leaves shared would carry the values past the network.
OWN_SHARED_MEMORY = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "_"]


def values():
    return sum((one + 1) * other for one, other in zip(MODEL, MODEL[1:]))


def traffic(host):
    """What a host has sent and received so far, in bytes."""
    files = [f"/sys/class/net/eth0/statistics/{which}_bytes" for which in ("tx", "rx")]
    done = subprocess.run(["ip", "netns", "exec", f"{PREFIX}-{host + 1}", "cat", *files], check=True, stdout=subprocess.PIPE,
                          timeout=60)
    return [int(word) for word in done.stdout.split()]


def set_of(key):
    """An override of what --sync calls KEY=VALUE."""
    return f"sync.{key}"


class Real:
    """A run on hosts of their own: its metrics, what all workers have sent and received, and its folder."""

    def __init__(self, folder, name, keys, seconds, *sets):
        """`seconds` are those of a pass, by worker."""
        hosts = WORKERS + (1 + SERVERS if "kind=server" in keys else 0)
        beside = hosts - WORKERS
        before = [traffic(host) for host in range(hosts)]
        sets = (f"name={name}", *map(set_of, keys), *sets)
        jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{host + 1}", *OWN_SHARED_MEMORY, "env", "-C", folder, TROIKA,
                     *train_arguments((*sets, f"debug.sample_seconds={seconds[max(0, host - beside)]}")), "--overwrite",
                     "--nodes", str(hosts), "--node-rank", str(host), "--ranks-per-node", "1", "--rendezvous", RENDEZVOUS],
                    environment(OMP_NUM_THREADS="1")) for host in range(hosts)]
        wait_for_all(jobs)
        assert all(job.status == 0 for job in jobs), [job.err for job in jobs]
        # By worker.
        moved = [[now - then for now, then in zip(traffic(host), before[host])] for host in range(hosts)][-WORKERS:]
        self.sent, self.received = (sum(each) for each in zip(*moved))
        self.folder = pathlib.Path(folder) / "runs" / name
        self.lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def seconds(self, first):
        """Of the steps from `first` on."""
        return sum(line["step_seconds"] for line in self.lines[first - 1:])

    def staleness(self, first):
        """The mean over the updates of the steps from `first` on."""
        lines = self.lines[first - 1:]
        updates = sum(line["updates"] for line in lines)
        return sum(int(one) * count for line in lines for one, count in line["staleness"].items()) / updates

    def bytes_of(self, label):
        """What all ranks have sent in collectives whose label begins so, by the flight recorder."""
        command = [TROIKA, "inspect", str(self.folder), "--json"]
        ranks = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout)["ranks"]
        for rank in ranks:  # nothing has been overwritten
            assert len(rank["operations"]) == rank["count"], rank["count"]
        return sum(one["bytes_sent"] for rank in ranks for one in rank["operations"] if one["label"].startswith(label))


def simulated(folder, keys, seconds, seed, *sets):
    speeds = ", ".join(str(PASS_SECONDS / one) for one in seconds)
    words = [word for one in sets for word in ("--set", one)]
    command = ["env", "-C", folder, TROIKA, "simulate", "sync", "recipe.toml", "--workers", str(WORKERS), "--json",
               "--link", f"{RATE_MBIT}Mbit/s {DELAY_MS}ms", "--pass-seconds", str(PASS_SECONDS), "--speeds", f"list({speeds})",
               "--seed", str(seed), "--sync", " ".join(keys), *words]
    done = Job(command, environment(OMP_NUM_THREADS="1")).wait()
    assert done.status == 0, done.err
    return json.loads(done.out)["settings"][0]


def compare(name, keys, *sets, first=2, seconds=(PASS_SECONDS,) * WORKERS, within=WITHIN):
    """Holds the times of the steps from `first` on against each other: medians of runs, and of seeds. Yields each run with
    a simulation."""
    with temporary_folder() as folder:
        (pathlib.Path(folder) / "recipe.toml").write_text(RECIPE)
        of_seeds, runs = [], []
        for seed in range(SEEDS if "staleness=any" in keys else 1):
            its = simulated(folder, keys, seconds, seed, *sets)
            of_seeds.append(its["steps"][-1]["seconds"] - its["steps"][first - 2]["seconds"])
        expected = statistics.median(of_seeds)
        for _ in range(RUNS):
            run = Real(folder, name, keys, seconds, *sets)
            runs.append(run.seconds(first))
            yield run, its
        found = statistics.median(runs)
        print(f"{name}: {found:.2f} s ({min(runs):.2f} to {max(runs):.2f}), simulated {expected:.2f} s ({min(of_seeds):.2f} to "
              f"{max(of_seeds):.2f}): ratio {found / expected:.3f}", flush=True)
        assert abs(found / expected - 1) < within, (name, runs, expected)


def all_reduce_of_all_ranks():
    for run, its in compare("all_reduce", ("kind=all_reduce",)):
        assert run.bytes_of("gradient bucket") == its["sent_bytes"], its["sent_bytes"]
        check_framing(run.sent, its["sent_bytes"])


def local_steps():
    for run, its in compare("local", ("kind=local", "every_steps=4", "island=1"), first=5):
        assert run.bytes_of("islands") == its["sent_bytes"], its["sent_bytes"]


def check_framing(found, of_values):
    assert 1 < found / of_values < 1 + MOST_FRAMING, (found, of_values)


def check_server_bytes(run, its):
    """Each update is a pull of all values, and a push of as many."""
    passes = sum(worker["passes"] for worker in its["workers"])
    assert its["sent_bytes"] == its["received_bytes"] == passes * values() * 4, its
    updates = len(run.lines) * WORKERS
    assert passes == updates, (passes, updates)
    check_framing(run.sent, its["sent_bytes"])
    check_framing(run.received, its["received_bytes"])


def servers_without_staleness():
    for run, its in compare("synchronous", ("kind=server", "save_every_updates=0")):
        check_server_bytes(run, its)


def hold_any_staleness(name, seconds, within=WITHIN):
    keys = ("kind=server", "staleness=any", "save_every_updates=0")
    first = 5
    found = []
    for run, its in compare(name, keys, "train.steps=30", first=first, seconds=seconds, within=within):
        check_server_bytes(run, its)
        found.append(run.staleness(first))
    mean = statistics.median(found)
    print(f"{name}: mean staleness {mean:.2f}, simulated {its['staleness_mean']:.2f}")
    assert abs(mean - its["staleness_mean"]) < MOST_STALENESS_APART, (found, its["staleness_mean"])


# Of unequal workers one run is like another.
@slow
def servers_of_any_staleness():
    hold_any_staleness("any", (0.2, 0.26, 0.34))


# Equal ones go in step for a while, and then one after the other: runs differ by a tenth from their mean, as seeds do. Always in
# step they would take half as long again.
@slow
def servers_of_equal_workers():
    hold_any_staleness("equal", (PASS_SECONDS,) * WORKERS, within=0.25)


@slow
def servers_with_a_slow_worker():
    hold_any_staleness("slow", (0.2, 0.28, 0.8))


need_root()
need_programs("ip")
if not os.path.exists("/dev/net/tun"):
    skip("links with a latency need /dev/net/tun")
try:
    hosts = WORKERS + 1 + SERVERS
    if subprocess.run([LAB, "up", PREFIX, str(hosts), LAB_WIRE, str(DELAY_MS), str(RATE_MBIT)], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([all_reduce_of_all_ranks, local_steps, servers_without_staleness, servers_of_any_staleness,
               servers_of_equal_workers, servers_with_a_slow_worker])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
