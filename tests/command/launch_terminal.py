"""The launcher at a terminal, and before a reader who leaves. Usage: launch_terminal.py TEST_LAUNCH"""

import os
import pty
import re
import sys

from launchers import environment, run_tests

LAUNCH = [sys.argv[1], "launch"]


def at_terminal(command, until, answer):
    """Types `answer` once `until` has been printed; what was printed, and the exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment(TERM="xterm"))
    printed = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not data:
            break
        printed += data
        if answer and until(printed):
            os.write(terminal, answer)
            answer = None
    os.close(terminal)
    return printed.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ctrl_c_reaches_each_rank_once():
    printed, status = at_terminal(LAUNCH + ["interrupted", "--ranks", "3"],
                                  lambda text: text.count(b"ready\r\n") == 3, b"\x03")
    assert status == 130, (status, printed)
    assert printed.count("ending once") == 3, printed
    assert printed.count("troika: interrupted") == 1, printed
    assert printed.rstrip().endswith("troika: interrupted"), printed


def other_ranks_clear_the_progress_line():
    printed, status = at_terminal(LAUNCH + ["done", "--ranks", "2"], None, None)
    assert status == 0, (status, printed)
    assert "\r\x1b[K[rank 1] pid " in printed, printed


def the_root_cause_is_not_glued_to_the_progress_line():
    for role, answer, cause in (("draws-and-dies", None, r"troika: rank 0 \(host "),
                                ("draws-and-hangs", b"\x03", "troika: interrupted")):
        printed, status = at_terminal(LAUNCH + [role, "--ranks", "1"], lambda text: b"step 7/9" in text, answer)
        assert status in (5, 130), (status, printed)
        # A terminal echoes what is typed.
        assert re.search(r"\rstep 7/9\x1b\[K(\^C)?\r\x1b\[K" + cause, printed), ascii(printed)


def a_reader_who_leaves_does_no_harm():
    read_end, write_end = os.pipe()
    pid = os.posix_spawnp(LAUNCH[0], LAUNCH + ["talk", "--ranks", "3"], environment(),
                          file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1)])
    os.close(write_end)
    assert os.read(read_end, 10)
    os.close(read_end)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # Rank 0 and the rest have all written into the void, and have ended well.
    assert status == 0, status


run_tests([ctrl_c_reaches_each_rank_once, other_ranks_clear_the_progress_line,
           the_root_cause_is_not_glued_to_the_progress_line, a_reader_who_leaves_does_no_harm])
