"""A rank that hangs on another host is named, though no rank can look at it from here: its launcher says what it does.

Usage: launch_hang.py COMM_PROBE
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from launchers import ENDLESS_RECIPE, Job, environment, need_programs, need_root, run, run_tests, skip, wait_for_all

TROIKA = os.environ["TROIKA"]
COMM_PROBE = sys.argv[1]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "netns.sh")
PREFIX = f"troika{os.getpid()}"


def node(number, folder):
    """The launcher of one node, on a host with a name of its own."""
    own = folder / f"node-{number}"
    own.mkdir()
    command = (f"hostname host-{'ab'[number]} && cd {own} && exec {TROIKA} train {folder}/recipe.toml --nodes 2 "
               f"--ranks-per-node 1 --node-rank {number} --rendezvous 10.99.0.1:29500")
    return Job(["ip", "netns", "exec", f"{PREFIX}-{number + 1}", "unshare", "--uts", "sh", "-c", command],
               environment(OMP_NUM_THREADS="1"))


def recording(folder, number):
    done = run([TROIKA, "inspect", f"{folder}/node-{number}/runs/endless", "--json"])
    return json.loads(done.out)["ranks"][0] if done.status == 0 else None


def jobs_that_train(folder):
    """Two launchers whose ranks are under way, and what the second rank's flight recorder says."""
    (folder / "recipe.toml").write_text(ENDLESS_RECIPE + "[comm]\ntimeout_seconds = 3\n")
    jobs = [node(0, folder), node(1, folder)]
    until = time.monotonic() + 60
    while (found := recording(folder, 1)) is None or found["count"] < 10:
        assert all(job.process.poll() is None for job in jobs), [job.wait().err for job in jobs]
        assert time.monotonic() < until, "the job has not begun"
    return jobs, found


def a_stopped_rank_of_another_host_is_named():
    with tempfile.TemporaryDirectory() as name:
        jobs, found = jobs_that_train(pathlib.Path(name))
        os.kill(found["pid"], signal.SIGSTOP)
        done = wait_for_all(jobs)
        for job in done:
            assert job.status == 4, (job.status, job.err)
            assert f"rank 1 (host host-b, pid {found['pid']}) has" in job.err, job.err
            assert "rank 0 has waited 3.0 s" in job.err, job.err
            assert f"process {found['pid']} is stopped (SIGSTOP" in job.err, job.err


def a_killed_rank_of_another_host_is_named():
    with tempfile.TemporaryDirectory() as name:
        jobs, found = jobs_that_train(pathlib.Path(name))
        os.kill(found["pid"], signal.SIGKILL)
        done = wait_for_all(jobs)
        for job in done:
            assert job.status == 5, (job.status, job.err)
            assert f"rank 1 (host host-b, pid {found['pid']}) was killed by signal 9 (SIGKILL); it " in job.err, job.err


def a_network_that_is_cut_without_a_word_ends_both_jobs():
    with tempfile.TemporaryDirectory() as name:
        jobs, _ = jobs_that_train(pathlib.Path(name))
        plug = ["ip", "-n", f"{PREFIX}-switch", "link", "set", "port2"]
        subprocess.run([*plug, "nomaster"], check=True)
        try:
            done = wait_for_all(jobs, 120)
        finally:
            subprocess.run([*plug, "master", "bridge"], check=True)
        assert [job.status for job in done] == [5, 5], [(job.status, job.err) for job in done]
        assert "node 1 of 2 does not answer: its launcher or its machine is gone" in done[0].err, done[0].err
        assert "the launcher of node 0 at 10.99.0.1:29500 is gone" in done[1].err, done[1].err


def told_of(how, ranks_per_host):
    """What the jobs of two hosts end with if the last rank, on the second one, deviates after two sums."""
    last = 2 * ranks_per_host - 1
    with tempfile.TemporaryDirectory() as name:
        jobs = [Job(["ip", "netns", "exec", f"{PREFIX}-{number + 1}", "unshare", "--uts", "sh", "-c",
                     f"hostname host-{'ab'[number]} && exec {TROIKA} launch --nodes 2 --node-rank {number} "
                     f"--ranks-per-node {ranks_per_host} --rendezvous 10.99.0.1:29500 --recorders {name}/{number} -- "
                     f"{COMM_PROBE} auto 1 100000000 5 {last} {how}"], environment(OMP_NUM_THREADS="1"))
                for number in (0, 1)]
        done = wait_for_all(jobs)
    for job in done:
        assert job.status == 5, (job.status, job.err)
    # The line that says why, and the hint.
    return [job.err.splitlines()[-2:] for job in done], f"rank {last} \\(host host-b, pid [0-9]+\\)"


OTHER = "rank [012] \\(host host-[ab], pid [0-9]+\\)"


def matches(pattern, text):
    assert re.search(pattern, text), (pattern, text)


def a_rank_of_another_host_in_an_endless_loop_is_named():
    for ranks_per_host in (1, 2):
        told, culprit = told_of("loops", ranks_per_host)
        for cause, hint in told:
            matches(f"{culprit} has not entered all_reduce 'sum' on axis world; .* waited .*; "
                    "it last completed barrier 'round' ", cause)
            matches("process [0-9]+ is computing: an endless loop", hint)


def each_names_the_other(how, by_others, by_the_culprit, hint):
    """Of two that differ: the first line is of the rank that has failed first. CULPRIT, LAST and OTHER are put in."""
    for ranks_per_host in (1, 2):
        told, culprit = told_of(how, ranks_per_host)
        one_of_them = "|".join((by_others, by_the_culprit))
        for word, name in (("CULPRIT", culprit), ("LAST", f"rank {2 * ranks_per_host - 1}"), ("OTHER", OTHER)):
            one_of_them = one_of_them.replace(word, name)
        for cause, said_hint in told:
            matches(one_of_them, cause)
            matches(hint, said_hint)


def a_rank_of_another_host_in_another_operation_is_named():
    place = "as operation 6 on axis world, where"
    each_names_the_other("broadcasts",
                         f"CULPRIT is in broadcast 'weights' {place} ranks? [0-9, and]+ entered all_reduce 'sum'",
                         f"OTHER is in all_reduce 'sum' {place} LAST entered broadcast 'weights'",
                         "all ranks must call the same operations, in the same order")


def a_rank_of_another_host_with_another_shape_is_named():
    what = "has entered all_reduce 'sum' on axis world with"
    each_names_the_other("halves", f"CULPRIT {what} 131072 x fp32, and ranks? [0-9, and]+ with 262144 x fp32",
                         f"OTHER {what} 262144 x fp32, and LAST with 131072 x fp32", "all ranks must ")


need_root()
need_programs("ip", "unshare")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([a_network_that_is_cut_without_a_word_ends_both_jobs, a_killed_rank_of_another_host_is_named,
               a_stopped_rank_of_another_host_is_named,
               a_rank_of_another_host_in_an_endless_loop_is_named,
               a_rank_of_another_host_in_another_operation_is_named,
               a_rank_of_another_host_with_another_shape_is_named])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
