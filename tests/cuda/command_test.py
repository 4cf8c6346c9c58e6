#!/usr/bin/env python3
"""The command on the first GPU of this machine: command_test.py TROIKA. Skipped where there is none."""
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest

os.environ["TROIKA"] = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "command"))

import command  # noqa: E402
from launchers import reserved_port, skip  # noqa: E402

USAGE, INTERNAL, CHECKPOINTED = 2, 1, 75
ON_GPU = "train.device=cuda:0"
FP64 = ("train.precision=fp64", "model.layers=2", "train.steps=4", "debug.dump_steps=[2]", "train.best_metric=loss")
RESNET = ('[model]\nkind = "resnet"\nimage_size = 16\nchannels = 3\nwidth = 8\nclasses = 4\n'
          '[data]\nkind = "random"\nheld_out_fraction = 0.2\n')


class OnGpu(command.CommandTest):
    def use_model(self, text):
        head, rest = command.RECIPE.split("[model]")
        (self.folder / "recipe.toml").write_text(head + text + "[train]" + rest.split("[train]")[1])

    def expect_near(self, found, expected, bound=1e-11):
        """Two safetensors files."""
        ours, theirs = command.numbers_of(found), command.numbers_of(expected)
        self.assertEqual(ours.keys(), theirs.keys())
        largest = max(abs(value) for values in theirs.values() for value in values)
        for name, values in theirs.items():
            apart = max((abs(one - other) for one, other in zip(ours[name], values)), default=0)
            self.assertLessEqual(apart, bound * largest + 1e-14, f"{found.name} {name}")

    def expect_the_hosts_numbers(self, *sets, ranks=1):
        self.succeeds(self.train("name=host", "train.device=cpu", *FP64, *sets, ranks=ranks))
        done = self.succeeds(self.train(ON_GPU, *FP64, *sets, ranks=ranks, flags=("--json",)))
        host = self.folder / "runs/host"
        for here, there in zip(self.metrics(), self.metrics(host)):
            for key in ("loss", "grad_norm", "held_out_loss"):
                if key in there:
                    self.assertAlmostEqual(here[key] / there[key], 1, delta=1e-11, msg=key)
            self.assertGreater(here["device_peak_bytes"], 10000)
        for file in ("model.safetensors", "best.safetensors", "dump/step-2/gradients.safetensors"):
            self.expect_near(self.run_folder / file, host / file)
        shutil.rmtree(self.folder / "runs")
        return done

    def test_a_gpt_has_the_hosts_numbers(self):
        self.expect_the_hosts_numbers("model.dropout=0.1")
        done = self.expect_the_hosts_numbers("parallel.zero_stage=3", ranks=2)
        self.assertIn(", device cuda:0, engine shm, staged\n", done.err)
        self.assertEqual([rank["device"] for rank in json.loads(done.out)["ranks"]], ["cuda:0"] * 2)
        self.expect_the_hosts_numbers("parallel.pipeline=2", ranks=2)
        self.expect_the_hosts_numbers("parallel.tensor=2", ranks=2)

    def test_a_resnet_has_the_hosts_numbers(self):
        self.use_model(RESNET)
        sets = [one for one in FP64 if "layers" not in one]
        self.succeeds(self.train("name=host", "train.device=cpu", *sets))
        self.succeeds(self.train(ON_GPU, *sets))
        self.expect_near(self.run_folder / "model.safetensors", self.folder / "runs/host/model.safetensors")

    def test_few_bits_train(self):
        for precision in ("bf16", "fp16", "auto"):
            sets = (f"name={precision}", f"train.precision={precision}", "train.steps=30", "optimizer.kind=adamw",
                    "optimizer.lr=0.003")
            self.succeeds(self.train(ON_GPU, *sets))
            losses = self.losses(self.folder / "runs" / precision)
            self.assertLess(losses[-1], losses[0] - 0.5, precision)

    def test_a_run_goes_on_from_its_checkpoint_with_the_same_bits(self):
        sets = (ON_GPU, "train.deterministic=true", "train.steps=60", "model.dropout=0.1", "optimizer.kind=adamw",
                "checkpoint.every_steps=5", "checkpoint.keep=1")
        self.succeeds(self.train("name=whole", *sets))
        process = self.start(*command.train_arguments(sets), "--ranks", 1)
        there = self.run_folder / "checkpoints"
        command.wait_until(lambda: process.popen.poll() is not None or list(there.glob("step-*/manifest.json")), "a checkpoint")
        os.kill(process.pid, signal.SIGTERM)
        self.assertIn(process.wait().status, (CHECKPOINTED, 0))
        self.succeeds(self.train(*sets, flags=() if not (self.run_folder / "summary.json").exists() else ("--overwrite",)))
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(),
                         (self.folder / "runs/whole/model.safetensors").read_bytes())

    def test_generate_doctor_and_bench(self):
        self.succeeds(self.train(ON_GPU))
        on_gpu, on_host = (self.succeeds(self.troika("generate", "runs/small", "--prompt", "the", "--device", device,
                                                     "--temperature", 0)).out for device in ("cuda:0", "cpu"))
        self.assertEqual(on_gpu, on_host)
        self.assertRegex(self.succeeds(self.troika("doctor")).out, r"cuda:0 .*GiB free of .*TB/s, near cores")
        words = ("bench", "comm", "--ranks", 2, "--device", "cuda:0", "--engine", "shm,gloo", "--sizes", "4K,4M",
                 "--budget", 0.1)
        done = self.succeeds(self.troika(*words, "--json"))
        self.assertEqual({one["engine"] for one in json.loads(done.out)["results"]}, {"shm, staged", "gloo, staged"})

    def test_bad_input(self):
        self.fails(self.train("train.device=cuda:7"), USAGE, "cuda:7", "counted from 0")
        self.fails(self.train("train.device=cuda", CUDA_VISIBLE_DEVICES=""), USAGE, "shows no GPU; CUDA_VISIBLE_DEVICES is ''")
        self.fails(self.train("train.device=cuda", "train.global_batch_size=64", ranks=32), USAGE, "32 ranks on this host, and ")
        self.fails(self.train(ON_GPU, "comm.engine=nccl", ranks=2), USAGE, "nccl", "two ranks compute on one device")
        huge = ("train.global_batch_size=16777216", "train.micro_batch_size=16777216")
        self.fails(self.train(ON_GPU, *huge), USAGE, "out of memory: rank 0 needs", "of cuda:0, which has")

    def test_a_gpu_that_is_full(self):
        """A resnet has no plan that could refuse it."""
        self.use_model(RESNET.replace("image_size = 16", "image_size = 512").replace("width = 8", "width = 256"))
        done = self.troika(*command.train_arguments((ON_GPU, "train.global_batch_size=2048", "train.micro_batch_size=2048")))
        self.fails(done, INTERNAL, "cuda:0 is out of memory: ", "hint: ")

    def two_hosts(self, *sets, **variables):
        """Runs a job of two ranks, each a host of its own by name: NCCL refuses two ranks of a host on one GPU."""
        words = [os.environ["TROIKA"], *command.train_arguments((ON_GPU, *sets)), "--nodes", 2, "--ranks-per-node", 1,
                 "--rendezvous", f"127.0.0.1:{reserved_port()}"]
        jobs = [command.Process(["unshare", "--uts", "sh", "-c", f'hostname host-{node}; exec "$@"', "sh",
                                 *map(str, words), "--node-rank", str(node)], self.folder, NCCL_HOSTID=f"host-{node}",
                                NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", **variables)
                for node in range(2)]
        for job in jobs:
            self.addCleanup(command.end, job)
        return [job.wait() for job in jobs]

    @unittest.skipUnless(os.geteuid() == 0, "only root may give a process a host name of its own")
    def test_two_ranks_with_nccl(self):
        sets = ("train.precision=fp64", "model.layers=2", "train.steps=4", "parallel.zero_stage=3")
        self.succeeds(self.train("name=host", "train.device=cpu", *sets, ranks=2))
        done = self.two_hosts(*sets)
        for one in done:
            self.succeeds(one)
        self.assertIn("engine nccl", done[0].err)
        self.expect_near(self.run_folder / "model.safetensors", self.folder / "runs/host/model.safetensors")

    @unittest.skipUnless(os.geteuid() == 0, "only root may give a process a host name of its own")
    def test_a_rank_that_hangs_is_named_with_nccl(self):
        first, second = self.two_hosts("comm.timeout_seconds=5", TROIKA_STOP_AT="1:gradient bucket*")
        self.assertIn("rank 1 (host host-1", first.err, str(first))
        self.assertIn("gradient bucket", first.err, str(first))


def why_no_gpu():
    with tempfile.TemporaryDirectory() as folder:
        done = command.Process([os.environ["TROIKA"], "doctor"], folder).wait()
    lines = [line for line in done.out.splitlines() if line.strip().startswith("GPUs")]
    return "" if lines and "none" not in lines[0] else f"no GPU: {lines[0].split('none: ', 1)[-1] if lines else done}"


if __name__ == "__main__":
    if reason := why_no_gpu():
        skip(reason)
    command.main()
