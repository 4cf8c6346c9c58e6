"""A program of its own that is killed, and goes on from its newest checkpoint: own_checkpoint_test.py EXAMPLES_FOLDER"""

import os
import pathlib
import re
import shutil
import signal
import sys

from command import CommandTest, Process, end, wait_until
from slow import main

PROGRAM = pathlib.Path(sys.argv[1]) / "own-checkpoint" / "own_checkpoint"
SECONDS = 120


class OwnCheckpoint(CommandTest):
    def launch(self, ranks, stage):
        command = [os.environ["TROIKA"], "launch", "--ranks", str(ranks), "--", str(PROGRAM), str(stage)]
        process = Process(command, self.folder)
        self.addCleanup(end, process)
        return process

    def digest(self, done):
        self.succeeds(done)
        return re.search("parameters ([0-9a-f]+)", done.out)[1]

    def steps_there(self):
        return sorted(int(path.parent.name[5:]) for path in (self.folder / "checkpoints").glob("step-*/manifest.json"))

    def damage(self, step):
        shard = next((self.folder / f"checkpoints/step-{step:08}").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)

    def killed(self, ranks, stage, step):
        process = self.launch(ranks, stage)
        wait_until(lambda: process.popen.poll() is not None or (self.steps_there() or [0])[-1] >= step, "a checkpoint")
        self.assertIsNone(process.popen.poll(), "it has ended before it could be killed")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)

    def test_it_ends_with_the_bits_of_one_that_was_never_killed(self):
        for ranks, stage in ((1, 0), (2, 1)):
            with self.subTest(ranks=ranks, stage=stage):
                whole = self.digest(self.launch(ranks, stage).wait(SECONDS))
                shutil.rmtree(self.folder / "checkpoints")
                self.killed(ranks, stage, 40)
                self.killed(ranks, stage, 200)
                done = self.launch(ranks, stage).wait(SECONDS)
                self.assertGreaterEqual(int(re.search(r"begins after step (\d+)", done.out)[1]), 200)
                self.assertEqual(self.digest(done), whole)
                after = self.launch(ranks, stage).wait(SECONDS)
                self.assertIn("begins after step 600", after.out)
                self.assertEqual(self.digest(after), whole)
                self.damage(600)
                done = self.launch(ranks, stage).wait(SECONDS)
                self.assertIn("begins after step 580", done.out)
                self.assertEqual(self.digest(done), whole)
                # The program has not configured the log.
                self.assertEqual(done.err.count("warning: the checkpoint of step 600 is not used: "), 1)
                self.assertIn("is damaged: its SHA-256", done.err)
                self.assertEqual(self.steps_there(), [560, 580, 600])
                shutil.rmtree(self.folder / "checkpoints")

    def test_it_goes_on_with_other_ranks_and_the_command_reads_it(self):
        self.killed(2, 2, 100)
        newest = self.steps_there()[-1]
        listed = self.succeeds(self.troika("checkpoint", "list", "checkpoints")).out.splitlines()
        self.assertEqual(listed[1].split()[:2], [str(newest), "2"])
        self.assertIn(f"step {newest}: whole", self.succeeds(self.troika("checkpoint", "verify", "checkpoints")).out)
        done = self.launch(1, 0).wait(SECONDS)
        self.assertIn(f"begins after step {newest}", done.out)
        self.digest(done)


if __name__ == "__main__":
    main(argv=sys.argv[:1])
