#!/usr/bin/env python3
"""examples/own-gpu on the test device prints the losses of the CPU: example_test.py TROIKA PROGRAM"""
import os
import re
import subprocess
import sys
import unittest

TROIKA, PROGRAM = sys.argv[1:3]
DEADLINE_SECONDS = 120


def launch(ranks, device):
    done = subprocess.run([TROIKA, "launch", "--ranks", str(ranks), "--", PROGRAM, device], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=DEADLINE_SECONDS)
    if done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def fails_alone(**variables):
    return subprocess.run([PROGRAM, "hpu"], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_SECONDS,
                          env={**os.environ, **variables})


def losses(output):
    return [float(found) for found in re.findall(r"^epoch \d+: loss (\S+)$", output, re.M)]


class Example(unittest.TestCase):
    def test_the_ranks_of_a_host_take_its_devices_in_turn(self):
        output = launch(2, "hpu")
        for rank in range(2):
            self.assertIn(f"rank {rank} computed on hpu:{rank}", output)
        self.assertLess(losses(output)[-1], 0.7 * losses(output)[0])
        for device, host in zip(losses(output), losses(launch(2, "cpu"))):
            self.assertAlmostEqual(device / host, 1, delta=1e-3)

    def test_two_ranks_share_one(self):
        output = launch(2, "hpu:1")
        for rank in range(2):
            self.assertIn(f"rank {rank} computed on hpu:1", output)


    def test_a_full_device_is_told_in_one_line(self):
        done = fails_alone(TROIKA_TEST_DEVICE_GIVES="300000")
        self.assertEqual(done.returncode, 1)
        said, hint = done.stderr.splitlines()
        self.assertRegex(said, "^own_gpu: hpu:0 is out of memory")
        self.assertRegex(hint, "^hint: smaller microbatches ")

    def test_a_device_that_fails_is_told_in_one_line(self):
        done = fails_alone(TROIKA_TEST_DEVICE_FAILS="200")
        self.assertEqual(done.returncode, 5)
        self.assertRegex(done.stderr, "^own_gpu: hpu:0 has failed: an illegal memory access was encountered\nhint: .*\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
