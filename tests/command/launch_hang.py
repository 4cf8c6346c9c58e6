"""A rank that hangs on another host is named, though nobody can look at it from here: its launcher says what it does."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from launchers import ENDLESS_RECIPE, Job, environment, need_programs, need_root, run, run_tests, skip

TROIKA = os.environ["TROIKA"]
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


def a_stopped_rank_of_another_host_is_named():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "recipe.toml").write_text(ENDLESS_RECIPE + "[comm]\ntimeout_seconds = 3\n")
        jobs = [node(0, folder), node(1, folder)]
        until = time.monotonic() + 60
        while (found := recording(folder, 1)) is None or found["count"] < 10:
            assert all(job.process.poll() is None for job in jobs), [job.wait().err for job in jobs]
            assert time.monotonic() < until, "the job has not begun"
        os.kill(found["pid"], signal.SIGSTOP)
        done = [job.wait() for job in jobs]
        for job in done:
            assert job.status == 4, (job.status, job.err)
            assert f"rank 1 (host host-b, pid {found['pid']}) has" in job.err, job.err
            assert "rank 0 has waited 3.0 s" in job.err, job.err
            assert f"process {found['pid']} is stopped (SIGSTOP" in job.err, job.err


need_root()
need_programs("ip", "unshare")
try:
    if subprocess.run([LAB, "up", PREFIX, "2"], timeout=60).returncode != 0:
        skip("this machine cannot make network namespaces")
    run_tests([a_stopped_rank_of_another_host_is_named])
finally:
    subprocess.run([LAB, "down", PREFIX], timeout=60)
