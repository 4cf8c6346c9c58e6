"""Ranks in a job step of a real Slurm find each other. Usage: launch_slurm.py WORLD_PROBE"""

import getpass
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from launchers import (Job, check_worlds, environment, need_programs, need_root, run, run_tests,
                       temporary_folder, worlds_in)

PROBE = sys.argv[1]
LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab", "slurm.sh")


class Cluster:
    """Three nodes of two processors, all on this host."""

    def __enter__(self):
        self.folder = temporary_folder()
        self.path = self.folder.name
        up = run([LAB, "up", self.path, "3", "2"])
        if up.status != 0:
            self.__exit__()
            raise AssertionError(up.out + up.err)
        self.env = environment(SLURM_CONF=up.out.strip())
        return self

    def __exit__(self, *_):
        subprocess.run([LAB, "down", self.path], check=True, timeout=60)
        self.folder.cleanup()

    def srun(self, *command, **changes):
        return run(["srun", *command], {**self.env, **changes})

    def batch(self, lines, *flags):
        """What a batch script prints."""
        script, output = os.path.join(self.path, "batch.sh"), os.path.join(self.path, "batch.out")
        with open(script, "w") as file:
            file.write("#!/bin/sh\n" + lines + "\n")
        job = run(["sbatch", "--wait", "--output", output, *flags, script], self.env)
        with open(output) as file:
            text = file.read()
        assert job.status == 0, job.out + job.err + text
        return text


def tasks_of_a_step_are_the_ranks():
    worlds = CLUSTER.srun("-N", "2", "-n", "3", PROBE).worlds()
    check_worlds(worlds, 3, source="slurm", nodes=2)
    assert sorted(world["node_rank"] for world in worlds) in ([0, 0, 1], [0, 1, 1]), worlds


def a_step_on_one_node_stays_on_it():
    worlds = CLUSTER.srun("-N", "1", "-n", "2", PROBE).worlds()
    check_worlds(worlds, 2, source="slurm", nodes=1, local_size=2)
    assert worlds[0]["store"].startswith("127.0.0.1:2"), worlds


def the_user_may_name_the_rendezvous():
    worlds = CLUSTER.srun("-N", "3", "-n", "3", PROBE, MASTER_ADDR="localhost").worlds()
    check_worlds(worlds, 3)
    assert worlds[0]["store"].startswith("localhost:2"), worlds


def pmi_of_srun_changes_nothing():
    check_worlds(CLUSTER.srun("--mpi=pmi2", "-n", "3", PROBE).worlds(), 3, source="slurm")


def a_batch_script_is_no_step():
    check_worlds(worlds_in(CLUSTER.batch(PROBE, "-N", "2", "-n", "2")), 2, source="troika")


def a_step_in_a_batch_script_is_one():
    text = CLUSTER.batch(f"srun -n 2 {PROBE}\nsrun -n 3 {PROBE}", "-N", "3", "-n", "3")
    worlds = worlds_in(text)
    for size, job in ((2, 0), (3, 1)):
        check_worlds([world for world in worlds if world["size"] == size], size, source="slurm")
        assert any(world["job"].endswith(f".{job}") for world in worlds), worlds


def mpirun_in_a_batch_script_counts_its_own_ranks():
    for mpirun in (f"mpirun.openmpi --allow-run-as-root --mca orte_tmpdir_base {CLUSTER.path}", "mpirun.mpich"):
        if not shutil.which(mpirun.split()[0]):
            print("  left out:", mpirun.split()[0], "is not installed")
            continue
        worlds = worlds_in(CLUSTER.batch(f"{mpirun} -n 3 {PROBE}", "-N", "3", "-n", "3"))
        check_worlds(worlds, 3, source="mpi")


def a_run_trains_in_a_step_and_is_finished_for_the_next():
    recipe = os.path.join(CLUSTER.path, "recipe.toml")
    with open(recipe, "w") as file:
        file.write('name = "slurm"\n[model]\nkind = "mlp"\ninput_dim = 4\nhidden_dims = [4]\noutput_dim = 2\n'
                   '[data]\nkind = "random"\n[train]\nsteps = 2\nglobal_batch_size = 6\nmicro_batch_size = 2\n')
    command = ["-n", "3", os.environ["TROIKA"], "train", recipe, "--json", "--set", f"runs_dir={CLUSTER.path}/runs"]
    first = CLUSTER.srun(*command)
    assert first.status == 0, first.err
    summary = json.loads(first.out)
    assert (summary["world_size"], summary["step"]) == (3, 2), first.out
    again = CLUSTER.srun(*command)
    assert (again.status, again.out) == (0, first.out), again.out + again.err
    assert "is finished already" in again.err, again.err


def a_run_that_slurm_ends_goes_on_when_it_is_queued_again():
    """As `sbatch --requeue --signal=TERM@120` has it: a signal before the end, then the same command."""
    recipe = os.path.join(CLUSTER.path, "requeued.toml")
    with open(recipe, "w") as file:
        file.write('name = "requeued"\n[model]\nkind = "mlp"\ninput_dim = 4\nhidden_dims = [4]\noutput_dim = 2\n'
                   '[data]\nkind = "random"\n[train]\nsteps = 2000\nglobal_batch_size = 6\nmicro_batch_size = 2\n'
                   'evaluate_every_steps = 0\n[checkpoint]\nevery_steps = 10\n')
    command = ["srun", "--kill-on-bad-exit", "-n", "3", os.environ["TROIKA"], "train", recipe, "--set",
               f"runs_dir={CLUSTER.path}/runs"]
    folder = pathlib.Path(CLUSTER.path, "runs/requeued")
    job = Job(command, CLUSTER.env)
    until = time.monotonic() + 60
    while not list(folder.glob("checkpoints/*/manifest.json")):
        assert job.process.poll() is None, job.wait().err
        assert time.monotonic() < until, "no checkpoint"
        time.sleep(0.02)
    assert run(["scancel", "--signal=TERM", "--user", getpass.getuser()], CLUSTER.env).status == 0
    job.wait()
    assert job.status != 0 and "the same command goes on from there" in job.err, (job.status, job.err)
    again = run(command, CLUSTER.env)
    assert again.status == 0, again.err
    assert "going on from the checkpoint of step" in again.err, again.err
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 2001)), lines[-1]


need_root()
need_programs("munged", "slurmctld", "slurmd", "srun", "sbatch")
with Cluster() as CLUSTER:
    run_tests([tasks_of_a_step_are_the_ranks, a_step_on_one_node_stays_on_it,
               the_user_may_name_the_rendezvous, pmi_of_srun_changes_nothing,
               a_batch_script_is_no_step, a_step_in_a_batch_script_is_one,
               mpirun_in_a_batch_script_counts_its_own_ranks,
               a_run_trains_in_a_step_and_is_finished_for_the_next,
               a_run_that_slurm_ends_goes_on_when_it_is_queued_again])
