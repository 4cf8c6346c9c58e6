"""What a process finds when it starts, and may not expect: closed descriptors, limits, wrappers, no /proc."""

import ctypes
import errno
import json
import os
import platform
import pty
import signal
import struct
import subprocess
import unittest

import command
from command import ENDLESS, CommandTest, state_of, wait_until
from launchers import environment, need_programs
from memory_test import SANITIZED

DONE, USAGE, RANK_DIED, STORAGE = 0, 2, 5, 7
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1"}
TRAIN = ["train", "recipe.toml"]


# pidfd_open and fallocate.
FORBIDDEN = {"x86_64": (434, 285), "aarch64": (434, 47)}


def forbid_system_call(number):
    """As a container's filter does: from now on it fails with EPERM in this process and its children."""
    load_number, jump_if_equal, leave = 0x20, 0x15, 0x06
    allow, fail = 0x7fff0000, 0x00050000 | errno.EPERM
    code = b"".join(struct.pack("<HBBI", *line) for line in (
        (load_number, 0, 0, 0), (jump_if_equal, 0, 1, number), (leave, 0, 0, fail), (leave, 0, 0, allow)))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    set_no_new_privileges, set_filter, mode_filter = 38, 22, 2
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in ((set_no_new_privileges, 1, 0, 0, 0), (set_filter, mode_filter, program, 0, 0)):
        if prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


class Surroundings(CommandTest):
    def shell(self, script, *arguments, **variables):
        """`script` by bash, in which "$@" is the command with `arguments`."""
        return self.begin(["bash", "-c", script, "bash", os.environ["TROIKA"], *map(str, arguments)], **variables).wait()

    def begin(self, words, **variables):
        process = command.Process(words, self.folder, **variables)
        self.addCleanup(command.end, process)
        return process

    def begin_training(self, words, **variables):
        process = self.begin(words, **variables)
        metrics = self.run_folder / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, "steps of training")
        return process


class Descriptors(Surroundings):
    def test_closed_standard_output_and_error_are_no_other_file(self):
        self.succeeds(self.shell('"$@" >&- 2>&-', *TRAIN, **ONE_RANK))
        for line in (self.run_folder / "metrics.jsonl").read_text().splitlines():
            json.loads(line)
        self.assertRegex((self.run_folder / ".lock").read_text(), r"^process \d+ on host \S+$")

    def test_a_launcher_without_any(self):
        self.succeeds(self.shell('"$@" <&- >&- 2>&-', "launch", "--ranks", 2, "--", "seq", 1, 300000))
        self.succeeds(self.shell('"$@" <&- >&- 2>&-', *TRAIN, "--ranks", 2))
        self.assertEqual(len(self.losses()), 3)

    def test_what_was_asked_for_and_cannot_be_written_is_an_error(self):
        self.fails(self.shell('"$@" >&-', "recipe", "--defaults"), STORAGE, "standard output")


class OpenFiles(Surroundings):
    """`ulimit -n`."""

    def limited(self, limit, ranks, *sets):
        return self.shell(f'ulimit {limit}; "$@"', *command.train_arguments(sets), "--ranks", ranks)

    def test_too_few_are_the_cause_that_is_told(self):
        for most, ranks in ((12, 2), (64, 8)):
            done = self.limited(f"-n {most}", ranks, "train.global_batch_size=16",
                                "comm.rendezvous_timeout_seconds=5")
            self.fails(done, USAGE, f"too many open files: the launcher of {ranks} ranks needs ",
                       f"and the limit is {most}", "ulimit -n")
            self.assertLess(done.seconds, 30)

    def test_a_limit_that_can_be_raised_is(self):
        self.succeeds(self.limited("-Sn 12", 2))

    def test_whatever_the_limit_it_is_the_cause(self):
        for most in range(16, 48, 6):
            done = self.limited(f"-n {most}", 2, "comm.engine=gloo", "comm.rendezvous_timeout_seconds=5")
            if done.status != DONE:
                self.assertIn("too many open files", done.err, str(done))


class Files(Surroundings):
    def test_no_folder_for_temporary_files(self):
        done = self.troika("verify", "recipe.toml", "--layouts", "data=2", "--steps", 1, TMPDIR="/nowhere")
        self.fails(done, STORAGE, "TMPDIR = '/nowhere'", "hint: set TMPDIR")

    def test_a_limit_on_their_size(self):
        for kilobytes in (8, 100):  # the recorders, the shared memory
            done = self.shell(f'ulimit -f {kilobytes}; "$@"', *TRAIN, "--ranks", 2)
            self.assertEqual(done.status, STORAGE, str(done))
            self.assertIn("ulimit -f", done.error_lines[-1], str(done))

    def test_any_program_that_a_limit_ends_is_told_by_it(self):
        done = self.shell('ulimit -f 8; "$@"', "launch", "--ranks", 1, "--", "sh", "-c",
                          "head -c 100000 /dev/zero > big; kill -XFSZ $$")
        self.fails(done, STORAGE, "signal 25 (SIGXFSZ)", "ulimit -f")


class Memory(Surroundings):
    @unittest.skipIf(SANITIZED, "a sanitizer needs more addresses, and memory is not kept under one")
    def test_under_a_limit_of_addresses_no_memory_is_kept(self):
        """Nor are addresses reserved for it."""
        for limit, keeps in (("30000000", False), ("unlimited", True)):
            done = self.shell(f'ulimit -v {limit}; "$@"', *TRAIN, "--overwrite", "--ranks", 2)
            self.assertEqual(done.status, DONE, str(done))
            self.assertEqual([line["cached_tensor_bytes"] > 0 for line in self.metrics()], 3 * [keeps])


class Kernel(Surroundings):
    """One that lets a process do less."""

    def test_without_proc(self):
        hide = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs none /proc && exec "$@"', "bash"]
        if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
            self.skipTest("this account mounts nothing")
        self.succeeds(self.begin([*hide, os.environ["TROIKA"], *TRAIN, "--ranks", "2"]).wait())
        self.assertEqual(len(self.losses()), 3)
        self.succeeds(self.begin([*hide, os.environ["TROIKA"], "bench", "comm", "--ranks", "2", "--sizes", "4",
                                  "--budget", "0.01"]).wait())

    def test_with_a_filter_of_system_calls(self):
        for number in FORBIDDEN.get(platform.machine(), ()):
            process = self.begin([os.environ["TROIKA"], *TRAIN, "--ranks", "2", "--overwrite"],
                                 preexec=lambda number=number: forbid_system_call(number))
            self.succeeds(process.wait())
            self.assertEqual(len(self.losses()), 3)


class Wrappers(Surroundings):
    def test_a_rank_may_be_behind_any(self):
        for wrapper in (["timeout", "60"], ["nice"], ["setsid", "--wait"], ["bash", "-c", '"$@"; exit $?', "bash"]):
            need_programs(wrapper[0])
            self.succeeds(self.troika("launch", "--ranks", 2, "--", *wrapper, os.environ["TROIKA"], *TRAIN,
                                      "--overwrite"))

    def test_the_error_of_a_rank_behind_one_is_told_once(self):
        done = self.troika("launch", "--ranks", 2, "--", "timeout", "60", os.environ["TROIKA"], "train", "none.toml")
        self.assertEqual(done.status, USAGE, str(done))
        self.assertEqual(done.err.count("troika: "), 1, str(done))


class ProcessOne(Surroundings):
    """As in a container, where the kernel applies no default action to signals."""

    def test_a_rank_ends_by_sigterm(self):
        unshare = ["unshare", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("this account makes no pid namespaces")
        process = self.begin_training([*unshare, os.environ["TROIKA"], *TRAIN, "--set", ENDLESS], **ONE_RANK)
        os.kill(process.children()[0], signal.SIGTERM)
        done = process.wait()
        self.assertEqual(done.status, 75, str(done))
        self.assertRegex(done.error_lines[-2], "^troika: interrupted by SIGTERM after step", str(done))


class Terminal(Surroundings):
    def test_one_that_cannot_redraw_gets_no_escape_codes(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        done = subprocess.run([os.environ["TROIKA"], *TRAIN, "--ranks", "2"], cwd=self.folder, stdout=theirs,
                              stderr=theirs, env=environment(TERM="dumb", OMP_NUM_THREADS="1"))
        os.close(theirs)
        printed = os.read(ours, 65536)
        self.assertEqual(done.returncode, 0, printed)
        self.assertIn(b"done: ", printed)
        self.assertNotIn(b"\x1b", printed)


class Threads(Surroundings):
    def test_a_small_model_takes_one(self):
        process = self.begin_training([os.environ["TROIKA"], *TRAIN, "--ranks", "1", "--set", ENDLESS],
                                      OMP_NUM_THREADS=None)
        (rank,) = process.ranks().values()
        self.assertEqual(command.variable_of(rank, "OMP_NUM_THREADS"), "1")

    def test_those_of_a_rank_do_not_spin_unless_asked_to(self):
        show = ["launch", "--ranks", "1", "--", "sh", "-c", "echo $OMP_WAIT_POLICY$GOMP_SPINCOUNT"]
        self.assertEqual(self.succeeds(self.troika(*show)).out, "1000\n")
        self.assertEqual(self.succeeds(self.troika(*show, OMP_WAIT_POLICY="active")).out, "active\n")
        self.assertEqual(self.succeeds(self.troika(*show, GOMP_SPINCOUNT="7")).out, "7\n")

    def test_operations_of_a_gpu_keep_their_order(self):
        show = ["launch", "--ranks", "1", "--", "sh", "-c", "echo $NCCL_LAUNCH_ORDER_IMPLICIT"]
        self.assertEqual(self.succeeds(self.troika(*show)).out, "1\n")
        self.assertEqual(self.succeeds(self.troika(*show, NCCL_LAUNCH_ORDER_IMPLICIT="0")).out, "0\n")


class Stopped(Surroundings):
    """Ctrl-Z and fg."""

    def test_a_job_stops_and_goes_on_as_one(self):
        # As by a shell with job control: in a process group of its own.
        process = self.begin_training([os.environ["TROIKA"], *TRAIN, "--ranks", "2", "--set", ENDLESS],
                                      preexec=os.setpgrp)
        everyone = [process.pid, *process.ranks().values()]
        os.kill(process.pid, signal.SIGTSTP)  # as the terminal does: to the launcher's process group
        wait_until(lambda: all(state_of(pid) == "T" for pid in everyone), "all are stopped")
        metrics = self.run_folder / "metrics.jsonl"
        before = metrics.stat().st_size
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: metrics.stat().st_size > before, "steps after the stop")
        self.assertNotIn("T", [state_of(pid) for pid in everyone])
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait().status, 75)


if __name__ == "__main__":
    command.main()
