"""`troika launch`: any program as ranks. Usage: launch_program.py WORLD_PROBE COMM_PROBE"""

import json
import os
import pathlib
import re
import signal
import socket
import sys
import time

from launchers import (ENDLESS_RECIPE, Job, check_worlds, environment, reserved_port, run, run_tests,
                       temporary_folder)

TROIKA = os.environ["TROIKA"]
HOST = socket.gethostname()
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
        # A rank that is alive holds this pipe open.
        os.mkfifo(f"{folder}/alive")
        script = f"exec 9>{folder}/alive; echo $RANK >&9; while :; do sleep 1 9>&-; done"
        job = Job([TROIKA, "launch", "--ranks", "2", "--", "sh", "-c", script],
                  environment(TMPDIR=folder))
        with open(f"{folder}/alive") as alive:
            assert sorted(alive.readline() for _ in range(2)) == ["0\n", "1\n"]
            job.process.kill()
            job.process.wait()
            assert alive.read() == ""  # returns once no process holds it
        job.wait()


def recorded(folder):
    """What `troika inspect` says of the ranks, by rank; empty before there is anything."""
    done = run([TROIKA, "inspect", str(folder), "--json"])
    return {one["rank"]: one for one in json.loads(done.out)["ranks"]} if done.status == 0 else {}


def under_way(job, folder, flight="troika-flight-*", size=2):
    """Waits until all ranks exchange something; returns the folder of their recorders, and their pids."""
    until = time.monotonic() + 60
    while True:
        for found in folder.glob(flight):
            ranks = recorded(found)
            if len(ranks) == size and all(rank["count"] > 10 for rank in ranks.values()):
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
        # Rank 0 has ended, and says whose fault it is.
        cause = root_cause(job, 5)
        assert cause.startswith("troika: rank 0 (host ") and " ended with exit status 4 after: " in cause, cause
        assert f"rank 1 (host {HOST}, pid {pids[1]}) has " in cause and "rank 0 has waited 2.0 s" in cause, cause
        hint = job.err.splitlines()[-1]
        assert hint.startswith(f"hint: process {pids[1]} is stopped (SIGSTOP"), job.err
        assert f"kill -CONT {pids[1]}" in hint, hint
        assert f"`troika inspect {flight}` shows what each rank did last" in job.err, job.err
        shown = run([TROIKA, "inspect", str(flight)])
        assert shown.status == 0 and str(pids[1]) in shown.out, (shown.out, shown.err)


def a_stopped_rank_is_named_with_shared_memory():
    a_stopped_rank_is_named_and_its_recorder_kept("shm")


def a_stopped_rank_is_named_with_messages():
    a_stopped_rank_is_named_and_its_recorder_kept("gloo")


# What a rank that is gone did last.
DEED = r"it (is in|was in|last completed) (barrier 'round'|all_reduce 'sum')"


def a_killed_rank_is_named_with_its_last_operation(engine):
    with temporary_folder() as name:
        job = Job([TROIKA, "launch", "--ranks", "3", "--", sys.argv[2], engine, "1", "100000000", "20"],
                  environment(TMPDIR=name, OMP_NUM_THREADS="1"))
        pids = under_way(job, pathlib.Path(name), size=3)[1]
        os.kill(pids[2], signal.SIGKILL)
        job.wait()
        gone = rf"rank 2 \(host {re.escape(HOST)}, pid {pids[2]}\)"
        # Whichever they hear first: that its process is gone, or what the launcher says.
        heard = rf"comm_probe: .*(lost {gone}|{gone} was killed by signal 9 \(SIGKILL\)); {DEED}"
        lines = job.err.splitlines()
        for rank in (0, 1):
            prefix = "" if rank == 0 else rf"\[rank {rank}\] "
            own = [i for i, line in enumerate(lines) if re.match(prefix + heard, line)]
            assert len(own) == 1, job.err
            assert any(re.match(prefix + "hint: .", line) for line in lines), job.err
        cause = root_cause(job, 5)
        assert re.match(rf"troika: {gone} was killed by signal 9 \(SIGKILL\); {DEED}", cause), cause


def a_killed_rank_is_named_with_its_last_operation_with_shared_memory():
    a_killed_rank_is_named_with_its_last_operation("shm")


def a_killed_rank_is_named_with_its_last_operation_with_messages():
    a_killed_rank_is_named_with_its_last_operation("gloo")


def a_killed_rank_of_a_training_is_named_with_its_last_operation():
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        (folder / "recipe.toml").write_text(f'runs_dir = "{folder}/runs"\n' + ENDLESS_RECIPE)
        job = Job([TROIKA, "train", str(folder / "recipe.toml"), "--ranks", "2"], environment(OMP_NUM_THREADS="1"))
        pids = under_way(job, folder, "runs/endless/flight")[1]
        os.kill(pids[1], signal.SIGKILL)
        job.wait()
        cause = root_cause(job, 5)
        assert re.match(rf"troika: rank 1 \(host {re.escape(HOST)}, pid {pids[1]}\) was killed by signal 9 "
                        r"\(SIGKILL\); it (is in|was in|last completed) \w+ '", cause), cause


def a_rank_that_leaves_early_is_named():
    with temporary_folder() as name:
        job = run([TROIKA, "launch", "--ranks", "3", "--", sys.argv[2], "shm", "1", "100000000", "20", "1"],
                  environment(TMPDIR=name, OMP_NUM_THREADS="1"))
        cause = root_cause(job, 5)
        assert re.match(r"troika: rank [02] \(host \S+, pid \d+\) ended with exit status 4 after: .*"
                        rf"lost rank 1 \(host {re.escape(HOST)}, pid \d+\); it last completed all_reduce 'sum'",
                        cause), cause
        # It has gone well, and so has no last lines.
        assert cause.endswith("; rank 1 had ended with exit status 0 before"), cause
        assert "hint: all ranks have to come to the same operations" in job.err.splitlines()[-1], job.err


def nothing_is_left_of_a_job_that_went_well():
    with temporary_folder() as name:
        job = run([TROIKA, "launch", "--ranks", "2", "--", sys.argv[2], "auto", "1", "3"], environment(TMPDIR=name))
        assert len(job.sums()) == 2 and os.listdir(name) == [], os.listdir(name)


def nothing_is_left_where_no_rank_did_anything():
    with temporary_folder() as name:
        job = run([TROIKA, "launch", "--ranks", "2", "--", "false"], environment(TMPDIR=name))
        root_cause(job, 5)
        assert "troika inspect" not in job.err and os.listdir(name) == [], (job.err, os.listdir(name))


def what_failed_jobs_leave_is_bounded():
    with temporary_folder() as name:
        for _ in range(5):
            job = run([TROIKA, "launch", "--ranks", "2", "--", "sh", "-c", '"$@"; exit 3', "sh", sys.argv[2],
                       "auto", "1", "3"], environment(TMPDIR=name))
            root_cause(job, 5)
            assert os.path.isdir(re.search(r"`troika inspect (\S+)`", job.err).group(1)), job.err
        assert len(os.listdir(name)) == 3, os.listdir(name)


def the_time_out_of_collectives_is_a_flag():
    with temporary_folder() as name:
        job = Job([TROIKA, "launch", "--ranks", "2", "--timeout", "2", "--", sys.argv[2], "shm", "1", "100000000", "200"],
                  environment(TMPDIR=name, OMP_NUM_THREADS="1"))
        os.kill(under_way(job, pathlib.Path(name))[1][1], signal.SIGSTOP)
        job.wait()
        assert "rank 0 has waited 2.0 s" in root_cause(job, 5), job.err


def a_launcher_says_what_it_waits_for():
    launcher = Job([TROIKA, "launch", "--nodes", "2", "--node-rank", "0", "--ranks-per-node", "1", "--rendezvous",
                    f"127.0.0.1:{reserved_port()}", "--rendezvous-timeout", "12", "--", "true"], environment())
    job = launcher.wait()
    assert "waiting for node 1 of 2 to come to 127.0.0.1:" in job.err and "(10 s of 12 s)" in job.err, job.err
    assert "troika: node 1 of 2 has not come" in job.err, job.err


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
               a_killed_rank_is_named_with_its_last_operation_with_shared_memory,
               a_killed_rank_is_named_with_its_last_operation_with_messages,
               a_killed_rank_of_a_training_is_named_with_its_last_operation,
               a_rank_that_leaves_early_is_named,
               nothing_is_left_of_a_job_that_went_well, nothing_is_left_where_no_rank_did_anything,
               what_failed_jobs_leave_is_bounded, the_time_out_of_collectives_is_a_flag,
               a_launcher_says_what_it_waits_for, a_folder_of_the_users_is_kept])
