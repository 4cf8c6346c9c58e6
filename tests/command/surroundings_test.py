"""What a process finds when it starts, and may not expect: closed descriptors, limits, wrappers, no /proc."""

import json
import os
import signal
import subprocess

import command
from command import ENDLESS, CommandTest, wait_until
from launchers import need_programs

DONE, USAGE, RANK_DIED, STORAGE = 0, 2, 5, 7
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1"}
TRAIN = ["train", "recipe.toml"]


class Surroundings(CommandTest):
    def shell(self, script, *arguments, **variables):
        """`script` by bash, in which "$@" is the command with `arguments`."""
        process = command.Process(["bash", "-c", script, "bash", os.environ["TROIKA"], *map(str, arguments)],
                                  self.folder, **variables)
        self.addCleanup(command.end, process)
        return process.wait()


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
        process = command.Process([*unshare, os.environ["TROIKA"], *TRAIN, "--set", ENDLESS], self.folder, **ONE_RANK)
        self.addCleanup(command.end, process)
        wait_until(lambda: (self.run_folder / "metrics.jsonl").exists() and self.losses(), "steps of training")
        os.kill(process.children()[0], signal.SIGTERM)
        done = process.wait()
        self.assertEqual(done.status, 128 + signal.SIGTERM, str(done))
        self.assertEqual(done.error_lines[-1], "troika: interrupted by SIGTERM", str(done))


if __name__ == "__main__":
    command.main()
