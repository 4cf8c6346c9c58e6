"""`troika launch`: any program as ranks. Usage: launch_program.py WORLD_PROBE"""

import os
import sys

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
        job = Job([TROIKA, "launch", "--ranks", "2", "--", "sh", "-c", script], environment())
        with open(f"{folder}/alive") as alive:
            assert sorted(alive.readline() for _ in range(2)) == ["0\n", "1\n"]
            job.process.kill()
            job.process.wait()
            assert alive.read() == ""  # returns once nobody holds it
        job.wait()


if __name__ == "__main__":
    run_tests([ranks_meet_at_the_launchers_store, a_program_needs_to_know_nothing_of_troika,
               flags_behind_the_program_are_its_own, an_exit_status_ends_the_job, a_kill_ends_the_job,
               a_program_that_is_not_there, ranks_die_with_the_launcher])
