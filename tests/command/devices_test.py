"""What the command says of devices that are not there, and of a driver that is too old. On machines without a GPU."""

import os
import pathlib
import re
import unittest

from command import CommandTest, main

USAGE = 2
FAKES = pathlib.Path(os.environ["TROIKA"]).parent / "tests"  # a driver, and a plug-in
NO_DRIVER = "NVIDIA's driver (libcuda.so.1) is not installed"
INSTALL = "hint: on a machine with a GPU install it, else train on the CPU; "
HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()


@unittest.skipIf(HAS_GPU, "this machine has a GPU")
class Devices(CommandTest):
    def test_a_gpu_that_is_not_there(self):
        done = self.fails(self.train("train.device=cuda", ranks=2), USAGE)
        self.assertEqual(done.error_lines, [
            'troika: --set train.device=cuda: [train] device = "cuda": this process has no cuda device: ' + NO_DRIVER,
            INSTALL + 'device = "cpu" does without'])
        self.assertFalse((self.folder / "runs").exists())

    def test_another_device_that_is_not_there(self):
        done = self.fails(self.train("train.device=xpu:1"), USAGE)
        self.assertEqual(done.error_lines, [
            'troika: --set train.device=xpu:1: [train] device = "xpu:1": this process has no xpu device',
            'hint: `troika doctor` says what is there; device = "cpu" does without'])

    def older_driver(self):
        """A driver for CUDA 12.4, and a plug-in for 13.1."""
        (self.folder / "libcuda.so.1").symlink_to(FAKES / "libfake_cuda_driver.so")
        content = (FAKES / "libfake_cuda_plugin.so").read_bytes()
        statement = re.search(rb"troika-cuda-plugin: troika=[^\0]*", content)[0]
        (self.folder / "libtroika_cuda.so").write_bytes(b"\0" + statement.replace(b"cuda=13000", b"cuda=13010") + b"\0")
        return {"LD_LIBRARY_PATH": self.folder, "TROIKA_PLUGINS": self.folder, "FAKE_CUDA_VERSION": 12040}

    def test_a_driver_older_than_the_libraries(self):
        done = self.fails(self.train("train.device=cuda", **self.older_driver()), USAGE)
        self.assertEqual(done.error_lines, [
            'troika: --set train.device=cuda: [train] device = "cuda": this process has no cuda device: NVIDIA\'s '
            "driver supports CUDA 12.4, and LibTorch's libraries are of CUDA 13.1",
            "hint: update the driver, or build with a LibTorch for CUDA 12, which Torch_DIR names; "
            'device = "cpu" does without'])

    def test_generate_on_a_device_that_is_not_there(self):
        self.succeeds(self.train("train.steps=1", "train.device=auto"))
        generate = ("generate", "runs/small", "--tokens", 5)
        on_host = self.succeeds(self.troika(*generate)).out
        self.assertEqual(self.succeeds(self.troika(*generate, "--device", "cpu")).out, on_host)
        done = self.troika(*generate, "--device", "cuda")
        self.assertEqual((done.status, done.out, done.error_lines), (USAGE, "", [
            "troika: --device cuda: this process has no cuda device: " + NO_DRIVER,
            INSTALL + "--device cpu does without"]))
        recipe = self.run_folder / "recipe.toml"
        recipe.write_text(recipe.read_text().replace('device = "auto"', 'device = "cuda:1"'))
        done = self.troika(*generate)
        self.assertEqual((done.status, done.out, done.error_lines), (USAGE, "", [
            'troika: the run\'s train.device = "cuda:1": this process has no cuda device: ' + NO_DRIVER,
            "hint: --device cpu does without, --device auto takes what is there"]))


if __name__ == "__main__":
    main()
