"""Runs of networks that torch.export has written, which PyTorch judges."""

import contextlib

import torch
from safetensors.torch import load_file

from exported_networks import NETWORKS, CastsToDouble, file_of, module_of
from judged import Judged, two_steps

RECIPE = """
name = "small"
[model]
kind = "exported"
path = "{path}"
{keys}
[data]
kind = "random"
""" + two_steps(12, 2)


class ExportedRuns(Judged):
    """Runs of the networks in exported_networks.py."""

    SAMPLES = 12

    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)

    def judged(self, name, ranks, *sets):
        network = NETWORKS[name]
        (self.folder / "recipe.toml").write_text(RECIPE.format(path=file_of(name), keys=network.recipe))
        self.trained(ranks, *sets)
        module = module_of(name)
        if network.casts:  # to float32, where the last bits of double are lost, and other ones on each side
            self.follow(module, ranks, network.call, bound=1e-6)
        with CastsToDouble() if network.casts else contextlib.nullcontext():
            expected = self.follow(module, ranks, network.call)
        saved = load_file(self.run_folder / "model.safetensors")
        program = torch.export.load(self.run_folder / "model.pt2")
        tied = {key for key, _ in module.named_parameters(remove_duplicate=False)} - {key for key, _ in module.named_parameters()}
        self.assertEqual(set(expected) - set(saved), tied)
        values = {key: expected[key] for key in saved}
        for found in (saved, program.state_dict):
            for key, value in values.items():
                bound = 1e-10 if found is saved else 1e-5  # the program keeps its own precision
                torch.testing.assert_close(found[key].double(), value.double(), rtol=bound, atol=bound, msg=f"{name} {key}")
        module.load_state_dict(expected)
        return module, program
