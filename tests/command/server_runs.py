"""What the tests of [sync] kind = "server" share."""

import json
import os
import signal

from command import RECIPE, train_arguments, wait_until
from going_on import GoingOnTest

SECONDS = 240
SERVER = ("sync.kind=server",)
ASYNCHRONOUS = (*SERVER, 'sync.staleness="any"')
KINDS = (("synchronous", SERVER), ("asynchronous", ASYNCHRONOUS))
CHECKPOINTED = 75


class ServerTest(GoingOnTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def folder_of(self, name):
        return self.folder / "runs" / name

    def lines_of(self, name):
        """Those that are whole, of a run that may be under way."""
        try:
            text = (self.folder_of(name) / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def begin(self, name, *sets, ranks):
        return self.start(*train_arguments((f"name={name}", *sets)), "--ranks", ranks)

    def wait_for(self, process, condition, what):
        wait_until(lambda: process.popen.poll() is not None or condition(), what)
        if process.popen.poll() is not None:
            self.fail(f"it has ended before there were {what}: {process.wait()}")

    def wait_for_steps(self, process, name, steps):
        self.wait_for(process, lambda: len(self.lines_of(name)) >= steps, f"{steps} steps")

    def is_whole(self, name, steps):
        """The metrics of a run with each of its steps once."""
        lines = self.lines_of(name)
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        return lines

    def stop(self, process, name):
        """Ends a run without an end. Returns what it has said, and its metrics."""
        os.kill(process.pid, signal.SIGTERM)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, CHECKPOINTED, str(done))
        return done, self.is_whole(name, len(self.lines_of(name)))

    def kill(self, process, rank):
        """Returns whether it was there: it may be about to start again."""
        try:
            os.kill(process.ranks()[rank], signal.SIGKILL)
        except (KeyError, StopIteration, FileNotFoundError, ProcessLookupError):
            return False
        return True
