"""`troika launch`: any program as ranks. Usage: launch_program.py WORLD_PROBE COMM_PROBE"""

import json
import os
import pathlib
import signal
import sys
import time

from launchers import Job, check_worlds, environment, run, run_tests, temporary_folder

TROIKA = os.environ["TROIKA"]
SAY = "import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)"


def launch(*arguments):
    return run([TROIKA, "launch", *arguments])


def root_cause(job, status):
    """The one cause that was told, and its hint."""
    assert job.status == status, (job.status, job.out, job.err)
    errors = [line for line in job.err.splitlines() if line.startswith("troika: ")]
    assert len(errors) == 1, job.err
    return errors[0]


def ranks_meet_at_the_launchers_store():
    check_worlds(launch("--ranks", "3", "--", sys.argv[1]).worlds(), 3)


def a_program_needs_to_know_nothing_of_troika():
    job = launch("--ranks", "2", "--", sys.executable, "-c", SAY)
    assert job.status == 0 and job.err == "", (job.status, job.err)
    assert sorted(job.out.splitlines()) == ["0 of 2", "[rank 1] 1 of 2"], job.out


def flags_behind_the_program_are_its_own():
    job = launch("--ranks", "1", "echo", "--ranks", "7", "--help")
    assert (job.status, job.out) == (0, "--ranks 7 --help\n"), (job.status, job.out, job.err)


def an_exit_status_ends_the_job():
    script = "case $RANK in 1) echo no luck >&2; exit 3;; *) sleep 60;; esac"
    job = launch("--ranks", "2", "--", "sh", "-c", script)
    cause = root_cause(job, 5)
    assert cause.startswith("troika: rank 1 (host ") and cause.endswith(") ended with exit status 3"), cause
    assert "[rank 1] no luck" in job.err, job.err


def a_kill_ends_the_job():
    cause = root_cause(launch("--ranks", "2", "--", "sh", "-c", "[ $RANK = 0 ] && kill -9 $$; sleep 60"), 5)
    assert cause.startswith("troika: rank 0 (host ") and "killed by signal 9 (SIGKILL)" in cause, cause


def a_program_that_is_not_there():
    cause = root_cause(launch("--ranks", "2", "--", "./no-such-program"), 2)
    assert "cannot start './no-such-program'" in cause, cause


def ranks_die_with_the_launcher():
    with temporary_folder() as folder:
        # Whoever is alive holds this pipe open.
        os.mkfifo(f"{folder}/alive")
        script = f"exec 9>{folder}/alive; echo $RANK >&9; while :; do sleep 1 9>&-; done"
        job = Job([TROIKA, "launch", "--ranks", "2", "--", "sh", "-c", script],
                  environment(TMPDIR=folder))
        with open(f"{folder}/alive") as alive:
            assert sorted(alive.readline() for _ in range(2)) == ["0\n", "1\n"]
            job.process.kill()
            job.process.wait()
            assert alive.read() == ""  # returns once nobody holds it
        job.wait()


def recorded(folder):
    """What `troika inspect` says of the ranks, by rank; empty before there is anything."""
    done = run([TROIKA, "inspect", str(folder), "--json"])
    return {one["rank"]: one for one in json.loads(done.out)["ranks"]} if done.status == 0 else {}


def under_way(job, folder, flight="troika-flight-*"):
    """Waits until both ranks exchange something; returns the folder of their recorders, and their pids."""
    until = time.monotonic() + 60
    while True:
        for found in folder.glob(flight):
            ranks = recorded(found)
            if len(ranks) == 2 and all(rank["count"] > 10 for rank in ranks.values()):
                return found, {number: rank["pid"] for number, rank in ranks.items()}
        assert job.process.poll() is None, job.wait().err
        assert time.monotonic() < until, "the job has not begun"


def a_stopped_rank_is_named_and_its_recorder_kept(engine):
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        job = Job([TROIKA, "launch", "--ranks", "2", "--", sys.argv[2], engine, "1", "100000000", "2"],
                  environment(TMPDIR=name, OMP_NUM_THREADS="1"))
        flight, pids = under_way(job, folder)
        assert flight.stat().st_mode & 0o777 == 0o700, oct(flight.stat().st_mode)
        os.kill(pids[1], signal.SIGSTOP)
        job.wait()
        cause = root_cause(job, 5)
        assert cause.startswith("troika: rank 0 (host "), cause
        assert "rank 1 (host " in job.err and "rank 0 has waited 2.0 s" in job.err, job.err
        assert f"process {pids[1]} is stopped (SIGSTOP" in job.err, job.err
        assert f"kill -CONT {pids[1]}" in job.err, job.err
        assert f"`troika inspect {flight}` shows what each rank did last" in job.err, job.err
        shown = run([TROIKA, "inspect", str(flight)])
        assert shown.status == 0 and str(pids[1]) in shown.out, (shown.out, shown.err)


def a_stopped_rank_is_named_with_shared_memory():
    a_stopped_rank_is_named_and_its_recorder_kept("shm")


def a_stopped_rank_is_named_with_messages():
    a_stopped_rank_is_named_and_its_recorder_kept("gloo")


def nothing_is_left_of_a_job_that_went_well():
    with temporary_folder() as name:
        job = run([TROIKA, "launch", "--ranks", "2", "--", sys.argv[2], "auto", "1", "3"], environment(TMPDIR=name))
        assert len(job.sums()) == 2 and os.listdir(name) == [], os.listdir(name)


def nothing_is_left_where_no_rank_did_anything():
    with temporary_folder() as name:
        job = run([TROIKA, "launch", "--ranks", "2", "--", "false"], environment(TMPDIR=name))
        root_cause(job, 5)
        assert "troika inspect" not in job.err and os.listdir(name) == [], (job.err, os.listdir(name))


def a_folder_of_the_users_is_kept():
    with temporary_folder() as name:
        flight = os.path.join(name, "flight")
        job = run([TROIKA, "launch", "--ranks", "2", "--recorders", flight, "--", sys.argv[2], "auto", "1", "3"],
                  environment(TMPDIR=name))
        assert len(job.sums()) == 2 and os.listdir(name) == ["flight"], os.listdir(name)
        assert sorted(recorded(flight)) == [0, 1], os.listdir(flight)


if __name__ == "__main__":
    run_tests([ranks_meet_at_the_launchers_store, a_program_needs_to_know_nothing_of_troika,
               flags_behind_the_program_are_its_own, an_exit_status_ends_the_job, a_kill_ends_the_job,
               a_program_that_is_not_there, ranks_die_with_the_launcher,
               a_stopped_rank_is_named_with_shared_memory, a_stopped_rank_is_named_with_messages,
               nothing_is_left_of_a_job_that_went_well, nothing_is_left_where_no_rank_did_anything,
               a_folder_of_the_users_is_kept])
