"""A worker of [sync] kind = "server" on another host, whose link is cut for a while.

Usage: launch_servers.py
"""

import json
import os
import pathlib
import signal
import subprocess
import time

from command import ENDLESS, RECIPE, slow, train_arguments, write_text
from launchers import Job, environment, need_programs, need_root, run_tests, skip, temporary_folder, wait_for_all

TROIKA = os.environ["TROIKA"]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "netns.sh")
PREFIX = f"servers{os.getpid()}"
WHERE = "10.99.0.1:29600"
CUT_SECONDS, LEASE_SECONDS = 10, 2
CHECKPOINTED = 75


def on_host(host, folder, name, *flags, sets=()):
    sets = (f"name={name}", ENDLESS, "data.kind=random", "train.global_batch_size=8", "train.evaluate_every_steps=0",
            f"sync.lease_seconds={LEASE_SECONDS}", f"sync.listen={WHERE}", *sets)
    return Job(["ip", "netns", "exec", f"{PREFIX}-{host}", "env", "-C", folder, TROIKA, *train_arguments(sets), *flags],
               environment(OMP_NUM_THREADS="1"))


def lines_of(folder, name):
    try:
        text = (folder / "runs" / name / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(condition, jobs, what):
    until = time.monotonic() + 120
    while not condition():
        assert all(job.process.poll() is None for job in jobs), (what, [job.wait().err for job in jobs])
        assert time.monotonic() < until, what
        time.sleep(0.02)  # between two looks


def set_link(host, state):
    subprocess.run(["ip", "-n", f"{PREFIX}-switch", "link", "set", f"port{host}", state], check=True, timeout=60)


def run_with_a_cut(folder, name, *sets):
    """One worker beside the servers, one on the other host. Returns the metrics, and what the one that was cut off has said."""
    sets = ("sync.kind=server", *sets)
    job = on_host(1, folder, name, "--ranks", "1", sets=sets)
    wait_for(lambda: len(lines_of(folder, name)) >= 3, [job], "steps")
    guest = on_host(2, folder, name, "--join", WHERE, sets=sets)
    jobs = [job, guest]
    wait_for(lambda: lines_of(folder, name)[-1]["workers"] == 2, jobs, "steps of two workers")
    set_link(2, "down")
    cut = len(lines_of(folder, name))
    wait_for(lambda: lines_of(folder, name)[-1]["workers"] == 1, jobs, "steps without the one that is cut off")
    time.sleep(CUT_SECONDS - LEASE_SECONDS)  # the fault itself
    during = len(lines_of(folder, name)) - cut
    set_link(2, "up")
    healed = len(lines_of(folder, name))
    wait_for(lambda: any(line["workers"] == 2 for line in lines_of(folder, name)[healed:]), jobs, "that it joins again")
    job.process.send_signal(signal.SIGTERM)
    wait_for_all(jobs)
    assert (job.status, guest.status) == (CHECKPOINTED, 0), (job.err, guest.err)
    lines = lines_of(folder, name)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert f"silent for {LEASE_SECONDS} s: the job goes on without it" in job.err, job.err
    assert "joining again" in guest.err, guest.err
    waited = max(line["step_seconds"] for line in lines)
    print(f"{name}: {during} steps while the link was cut for {CUT_SECONDS} s; the longest took {waited:.1f} s")
    # Its lease, and never the whole cut.
    assert waited < CUT_SECONDS - 2, waited
    assert during > 20, during
    return lines


def folder_with_recipe(name):
    folder = pathlib.Path(name)
    (folder / "recipe.toml").write_text(RECIPE)
    write_text(folder / "text", 12)
    return folder


def a_link_that_is_cut_costs_no_sample_where_no_worker_waits():
    with temporary_folder() as name:
        folder = folder_with_recipe(name)
        lines = run_with_a_cut(folder, "asynchronous", 'sync.staleness="any"')
        # Each sample has as many targets as the model has positions.
        assert [line["tokens"] for line in lines] == [8 * 32 * line["step"] for line in lines]
        assert {line["updates"] for line in lines} == {1}


@slow
def a_link_that_is_cut_costs_a_share_of_a_step_where_all_wait():
    with temporary_folder() as name:
        folder = folder_with_recipe(name)
        lines = run_with_a_cut(folder, "synchronous")
        assert sum(line.get("lost_samples", 0) for line in lines) <= 4


need_root()
need_programs("ip")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([a_link_that_is_cut_costs_no_sample_where_no_worker_waits,
               a_link_that_is_cut_costs_a_share_of_a_step_where_all_wait])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
