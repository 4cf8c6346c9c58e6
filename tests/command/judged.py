"""What tests share in which PyTorch follows a run on the batches that it has dumped."""

import copy

import torch
from safetensors.torch import load_file

from command import CommandTest


RATE = 0.05


def two_steps(samples, microbatch, momentum=0.0):
    """The sections of a recipe behind its model and data: two steps of SGD in fp64, both of which are dumped."""
    return f"""
[train]
steps = 2
global_batch_size = {samples}
micro_batch_size = {microbatch}
precision = "fp64"
grad_clip = 0
evaluate_every_steps = 2
[optimizer]
kind = "sgd"
lr = {RATE}
weight_decay = 0.0
momentum = {momentum}
schedule = "constant"
warmup_steps = 0
[observe]
tensorboard = false
[debug]
dump_steps = [1, 2]
"""


class Judged(CommandTest):
    """Runs of two_steps()."""

    SAMPLES, CHUNK = 8, 2

    def trained(self, ranks, *sets):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        return self.run_folder

    def dumped(self, step, what):
        return load_file(self.run_folder / "dump" / f"step-{step}" / f"{what}.safetensors")

    def follow(self, module, ranks, loss_of, bound=1e-10):
        """Two steps of PyTorch on the dumped batches, a replica's running statistics for each rank. `loss_of` returns the sum
        of the losses of a microbatch. Returns the values that the run has to end with."""
        share = self.SAMPLES // ranks
        replicas = [copy.deepcopy(module).double().train() for _ in range(ranks)]
        for step in (1, 2):
            batch = self.dumped(step, "batch")
            sums = {}
            self.average_buffers(replicas)
            for rank, replica in enumerate(replicas):
                replica.zero_grad()
                for first in range(rank * share, (rank + 1) * share, self.CHUNK):
                    rows = {name: each[first:first + self.CHUNK] for name, each in batch.items()}
                    rows = {name: each.double() if each.is_floating_point() else each for name, each in rows.items()}
                    (loss_of(replica, rows) / self.SAMPLES).backward()
                for name, parameter in replica.named_parameters():
                    if parameter.grad is not None:
                        sums[name] = sums.get(name, 0) + parameter.grad
            gradients = self.dumped(step, "gradients")
            self.assertEqual(set(sums) - set(gradients), set())
            largest = max(each.abs().max() for each in sums.values())
            for name, gradient in gradients.items():
                expected = sums.get(name, torch.zeros_like(gradient))  # PyTorch has none of what is not used
                self.assertLessEqual((gradient - expected).abs().max(), bound * largest, name)
            with torch.no_grad():
                for replica in replicas:
                    for name, parameter in replica.named_parameters():
                        if name in sums:
                            parameter -= RATE * sums[name]
        states = [replica.state_dict() for replica in replicas]
        return {name: (sum(state[name] for state in states) / ranks if value.is_floating_point() else value)
                for name, value in states[0].items()}

    @staticmethod
    def average_buffers(replicas):
        """As ranks do before a dump."""
        for buffers in zip(*(replica.buffers() for replica in replicas)):
            if buffers[0].is_floating_point():
                mean = sum(buffers) / len(buffers)
                for each in buffers:
                    each.copy_(mean)
