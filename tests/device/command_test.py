#!/usr/bin/env python3
"""The command on the test device, from the dry run to the summary: command_test.py TROIKA, which has the device linked in."""
import json
import os
import pathlib
import sys

os.environ["TROIKA"] = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "command"))

import command  # noqa: E402

USAGE = 2
ON_DEVICES = "train.device=hpu"
# More than the 2 GiB of a device in a microbatch, and of no matter how large a host.
LARGE = ("train.global_batch_size=524288", "train.micro_batch_size=524288")


class OnDevices(command.CommandTest):
    def test_a_run_reports_the_memory_of_its_devices(self):
        done = self.succeeds(self.train(ON_DEVICES, ranks=2, flags=("--json",)))
        for number, rank in enumerate(json.loads(done.out.splitlines()[-1])["ranks"]):
            self.assertEqual(rank["device"], f"hpu:{number}")
            self.assertGreaterEqual(rank["peak_reserved_bytes"], rank["peak_tensor_bytes"])
        for line in self.metrics():
            self.assertGreaterEqual(line["device_reserved_bytes"], line["device_peak_bytes"])

    def test_what_no_device_holds_is_refused_before_a_rank_starts(self):
        done = self.fails(self.train(ON_DEVICES, *LARGE, ranks=2), USAGE, "out of memory: rank 0 needs",
                          "of hpu:0, which has 2.0 GiB", "hint: write micro_batch_size = ")
        self.assertEqual(len(done.error_lines), 2, str(done))
        self.assertFalse((self.folder / "runs").exists())
        # Both on one: what they need of it adds up.
        self.fails(self.train("train.device=hpu:3", *LARGE, ranks=2), USAGE, "ranks 0 to 1 need", "of hpu:3")

    def test_a_dry_run_judges_devices(self):
        for sets, verdict in (((), "it fits"), (LARGE, "it does not fit")):
            done = self.succeeds(self.train(ON_DEVICES, *sets, ranks=2, flags=("--dry-run",)))
            self.assertRegex(done.out, f"hpu:0 needs .*, the most of 2 devices; it has 2.0 GiB: {verdict}\n")

    def test_the_start_line_names_device_and_engine(self):
        done = self.succeeds(self.train(ON_DEVICES, ranks=2))
        self.assertRegex(done.err, r"small: .* parameters, .*, device hpu:0, engine shm, staged\n")
        self.assertRegex(self.succeeds(self.train("name=alone", ON_DEVICES, ranks=1)).err, r", device hpu:0, engine none\n")
        self.assertRegex(self.succeeds(self.train("name=host", "train.device=cpu", ranks=2)).err, r"tensor 1, engine shm\n")

    def test_as_many_ranks_as_devices_and_one_for_a_device_that_is_named(self):
        for device, ranks in (("hpu", 4), ("hpu:1", 1), ("hpu:0", 1)):
            words = command.train_arguments((f"train.device={device}", "train.global_batch_size=8"))
            done = self.succeeds(self.troika(*words, "--dry-run", "--json"))
            self.assertEqual(json.loads(done.out)["world_size"], ranks)

    def test_a_rank_that_hangs_is_named(self):
        """Its tensors lie on a device: the deadlines of the host's engines hold there, too."""
        done = self.fails(self.train(ON_DEVICES, "comm.timeout_seconds=2", ranks=2, TROIKA_STOP_AT="1:gradient bucket*"),
                          4, "rank 1 (host ", "gradient bucket")
        self.assertLess(done.seconds, 30)

    def test_more_ranks_than_devices(self):
        self.fails(self.train(ON_DEVICES, "train.global_batch_size=8", ranks=5), USAGE, "5 ranks on this host, and 4 hpu devices")

    def test_a_device_that_is_full_though_its_tensors_were_to_fit(self):
        """As where a process takes more than its tensors: the advice is a change that needs less."""
        done = self.fails(self.train(ON_DEVICES, ranks=1, TROIKA_TEST_DEVICE_GIVES=60000), 1, "hpu:0 is out of memory: ",
                          "hint: write ", "; as it is the run needs ")
        self.assertNotIn("zero_stage", done.err)

    def test_mesh_and_bench(self):
        plan = json.loads(self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", 2, "--json", "--set", ON_DEVICES)).out)
        self.assertEqual([rank["device"] for rank in plan["ranks"]], ["hpu:0", "hpu:1"])
        words = ("bench", "comm", "--ranks", 2, "--device", "hpu", "--engine", "shm,gloo", "--sizes", "4K", "--budget", 0)
        found = json.loads(self.succeeds(self.troika(*words, "--json")).out)
        self.assertEqual([(one["engine"], one["device"]) for one in found["results"]],
                         [("shm, staged", "hpu:0"), ("gloo, staged", "hpu:0")])


if __name__ == "__main__":
    command.main()
