"""Files of TorchScript that a run refuses before it begins.

Run with pytest, in an environment with PyTorch and transformers.
"""

import pickle
import re
import socket
import unittest

import torch
from torch import nn

from command import CommandTest, train_arguments
from judged_torchscript_test import OWN_LOSS, RECIPE, UNITS, USAGE, Chain, Net, WithLoss
from launchers import reserved_port
from script_modules import Answers

DATA = 3


class Odd(nn.Module):
    """A linear layer, and what a test does with its output."""

    def __init__(self, how: str = ""):
        super().__init__()
        self.how = how
        self.fc = nn.Linear(3, 5)

    def forward(self, x):
        y = self.fc(x.flatten(1)[:, :3])
        if self.how == "varies":
            return y if bool(torch.rand(1) < 0) else y[:1] if x.size(0) == 4 else y
        if self.how == "throws":
            assert x.size(0) < 0, "not today"
        if self.how == "squeeze":
            return y.squeeze()
        if self.how == "detached":
            return y.detach()
        if self.how == "whole":
            return y.argmax(1, keepdim=True).expand(-1, 5)
        return y


class BadFiles(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def refused(self, *parts, sets=()):
        self.fails(self.train(*sets, ranks=2), USAGE, "recipe.toml:5", *parts)
        self.assertFalse((self.folder / "runs").exists())

    def test_a_file_that_is_not_there(self):
        self.refused("there is no file 'net.pt'")

    def test_a_file_that_is_no_torchscript(self):
        for what, message in ((b"", "it is empty"), (b"no archive", "it is no archive"), (pickle.dumps({"a": 1}), "it is no archive")):
            (self.folder / "net.pt").write_bytes(what)
            self.refused("'net.pt' is no TorchScript that can be loaded here: " + message)
        torch.save(Net().state_dict(), self.folder / "net.pt")
        self.refused("'net.pt' is no TorchScript that can be loaded here: it holds tensors without a program")
        torch.export.save(torch.export.export(nn.Linear(3, 5), (torch.ones(2, 3),)), self.folder / "net.pt2")
        (self.folder / "net.pt2").rename(self.folder / "net.pt")
        self.refused("'net.pt' is no TorchScript that can be loaded here: torch.export wrote it")
        torch.jit.script(Net()).save(self.folder / "net.pt")
        whole = (self.folder / "net.pt").read_bytes()
        (self.folder / "net.pt").write_bytes(whole[: len(whole) // 2])
        self.refused("'net.pt' is no TorchScript that can be loaded here: it is cut short")

    def test_hosts_whose_files_differ_in_the_last_bit_of_a_tensor(self):
        net = Net()
        endpoint = f"127.0.0.1:{reserved_port()}"
        nodes = []
        for node in (0, 1):
            folder = self.folder / f"host-{node}"
            folder.mkdir()
            (folder / "recipe.toml").write_text(RECIPE)
            net.fc.bias.data.view(torch.int32)[-1] += node
            torch.jit.script(net).save(folder / "net.pt")
            nodes.append(self.start(*train_arguments(["parallel.zero_stage=3"]), "--nodes", 2, "--ranks-per-node", 1,
                                    "--node-rank", node, "--rendezvous", endpoint, folder=folder))
        host = re.escape(socket.gethostname())
        for node in nodes:
            done = node.wait()
            self.fails(done, DATA)
            self.assertRegex(done.err, f"the model's file 'net.pt' differs between rank 0 on host {host} and "
                                       f"rank 1 on host {host}, first in tensor 'fc.bias'")
        self.assertFalse((self.folder / "host-0" / "runs" / "small" / "metrics.jsonl").exists())

    def test_a_file_that_one_host_lacks(self):
        """The other one, which waits for it, says so at once: it would wait for 300 s."""
        endpoint = f"127.0.0.1:{reserved_port()}"
        nodes = []
        for node in (0, 1):
            folder = self.folder / f"host-{node}"
            folder.mkdir()
            (folder / "recipe.toml").write_text(RECIPE)
            if node == 0:
                torch.jit.script(Net()).save(folder / "net.pt")
            nodes.append(self.start(*train_arguments([]), "--nodes", 2, "--ranks-per-node", 1, "--node-rank", node,
                                    "--rendezvous", endpoint, folder=folder))
        here, there = (node.wait(60) for node in nodes)
        self.fails(here, USAGE, f"node 1 on host {socket.gethostname()}: ", "there is no file 'net.pt'", "torch.jit")
        self.fails(there, USAGE, "there is no file 'net.pt'", "torch.jit")

    def test_a_module_without_parameters(self):
        torch.jit.script(nn.ReLU()).save(self.folder / "net.pt")
        self.refused("'net.pt' has no parameter to train")

    def test_units_that_are_not_the_module(self):
        torch.jit.script(Chain()).save(self.folder / "net.pt")

        def refused(units, *parts):
            self.refused(*parts, sets=[f"model.units={units}"])

        refused(["stem", "layer", "flatten", "fc"], "'net.pt' has no child 'layer'; did you mean 'layers'?")
        refused(["stem", "layers.0", "flatten", "fc"], "parameter 'layers.1.weight' belongs to no unit")
        refused(["stem", "layers", "layers.1", "fc"], "parameter 'layers.1.weight' belongs to the units layers and layers.1")
        refused(["stem", "layers", "fc"], "unit 'fc' does not take what layers gives, [2, 2, 3, 3]")
        torch.jit.script(Chain(scale=2.0)).save(self.folder / "net.pt")
        refused(UNITS, "the units of 'net.pt', one after the other, give other numbers than its forward()")

    def test_units_that_compare_equal_by_chance_alone(self):
        class Zeros(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Linear(6, 4)
                self.fc = nn.Linear(4 * 18, 5)
                nn.init.zeros_(self.fc.weight)

            def forward(self, x):
                return self.fc(torch.relu(self.stem(x)).flatten(1))

        class Dropping(Zeros):
            def forward(self, x):
                return self.fc(nn.functional.dropout(self.stem(x), 0.5, self.training).flatten(1))

        units = ["model.units=['stem','flatten','fc']"]
        torch.jit.script(Zeros()).save(self.folder / "net.pt")
        self.refused("give other numbers than its forward()", "between the units forward() may only flatten", sets=units)
        torch.jit.script(Dropping()).save(self.folder / "net.pt")
        self.refused("give other numbers than its forward() in training", "dropout there goes into a child", sets=units)

    def test_units_that_share_a_tensor(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(6, 6, bias=False)
                self.second = nn.Linear(6, 6, bias=False)
                self.second.weight = self.first.weight
                self.fc = nn.Linear(108, 5)

            def forward(self, x):
                return self.fc(self.second(self.first(x)).flatten(1))

        class Twice(Tied):
            def __init__(self):
                super().__init__()
                self.second = self.first

        for module in (Tied(), Twice()):
            torch.jit.script(module).save(self.folder / "net.pt")
            self.refused("'first.weight' and 'second.weight' are one tensor, which belongs to two units, first and second",
                         sets=["model.units=['first','second','flatten','fc']"])

    def test_running_statistics_that_evaluation_changes(self):
        torch.jit.trace(Chain().train(), torch.randn(2, 3, 6, 6), check_trace=False).save(self.folder / "net.pt")
        self.refused("'net.pt' changes its buffer 'stem.1.running_mean' in evaluation", "name that file as model.evaluation_path")

    def test_a_dictionary_with_other_keys(self):
        torch.jit.script(Answers()).save(self.folder / "net.pt")
        self.refused("'net.pt' returns a dictionary without 'score'; did you mean 'scores'?", "hidden, scores",
                     sets=["model.outputs={score={shape=[5]},hidden={shape=[5]}}"])

    def test_what_a_script_throws(self):
        class Throws(Odd):
            def forward(self, x):
                if x.size(0) > 0:
                    raise ValueError("not today\nnor tomorrow")
                return self.fc(x)

        torch.jit.script(Throws()).save(self.folder / "net.pt")
        self.refused("forward() throws: ValueError: not today\n")

    def test_dropout_that_is_always_on(self):
        class Always(Odd):
            def forward(self, x):
                return nn.functional.dropout(self.fc(x.flatten(1)[:, :3]), 0.5)

        torch.jit.script(Always()).save(self.folder / "net.pt")
        self.refused("gives other outputs each time in evaluation", "functional dropout takes training=self.training")

    def test_a_loss_of_its_own_that_is_none(self):
        def refused(*parts, sets=()):
            self.fails(self.train("model.loss=none", *sets, ranks=2), USAGE, *parts)

        torch.jit.script(WithLoss()).save(self.folder / "net.pt")
        refused("[model.outputs] has to say which tensor of forward() is the loss", "as in outputs = { loss = {} }")
        refused("'net.pt' returns 3 tensors, not 2", sets=["model.outputs={scores={shape=[5]},loss={}}", "model.loss_output=loss"])
        refused("'net.pt' returns [2, 5] as 'loss', which is no single number", sets=["model.outputs={loss={},scores={shape=[5]},count={}}"])
        refused("metrics: 'accuracy' judges outputs", sets=[*OWN_LOSS[1:], "train.metrics=['accuracy']"])
        refused("units: a module that returns its own loss is one unit", sets=[*OWN_LOSS[1:], "model.units=['stem']"])
        torch.jit.script(Net()).save(self.folder / "net.pt")
        refused("forward() throws", sets=["model.outputs={loss={}}"])  # it takes no target
        self.fails(self.train("model.loss_reduction=sum"), USAGE, "loss_reduction is for loss = \"none\"")
        (self.folder / "recipe.toml").write_text(RECIPE.replace('kind = "torchscript"', 'kind = "mlp"\ninput_dim = 3\nhidden_dims = []\noutput_dim = 2')
                                                 .replace('path = "net.pt"', 'loss = "none"')
                                                 .replace("inputs =", "# inputs =").replace("targets =", "# targets ="))
        self.fails(self.train(), USAGE, "loss = \"none\" is for a network that returns its loss, and kind = \"mlp\" returns none")

    def test_modules_that_cannot_train(self):
        for how, *parts in (("throws", "forward() throws", "not today"),
                            ("detached", "'outputs' does not depend on a parameter", "nothing would be trained"),
                            ("whole", "returns Long as 'outputs', which is float32")):
            torch.jit.script(Odd(how)).save(self.folder / "net.pt")
            self.refused(*parts)

    def test_an_output_whose_shape_varies(self):
        torch.jit.script(Odd("varies")).save(self.folder / "net.pt")
        self.fails(self.train("train.micro_batch_size=4", ranks=2), USAGE, "gives Double [1, 5], not Double [4, 5]")

    def test_one_sample_that_loses_its_dimension(self):
        torch.jit.script(Odd("squeeze")).save(self.folder / "net.pt")
        self.refused("forward() takes 2 samples, but not 1", "returns [5] for 1 sample, not [1, 5]", "squeeze(1) or flatten(1) does not")

    def test_batch_norm_without_running_statistics(self):
        class Bare(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(108, 5)
                self.norm = nn.BatchNorm1d(5, track_running_stats=False)

            def forward(self, x):
                return self.norm(self.fc(x.flatten(1)))

        torch.jit.script(Bare()).save(self.folder / "net.pt")
        self.refused("forward() takes 2 samples, but not 1", "Expected more than 1 value per channel", "batch-norm without running statistics")

    def test_tensors_that_cannot_be_trained(self):
        class Turned(Odd):
            def __init__(self, how):
                super().__init__()
                values = torch.ones(3) + torch.ones(3) * 3j if how == "complex" else torch.ones(1).expand(3)
                self.k = nn.Parameter(values)

            def forward(self, x):
                return self.fc(torch.abs(x.flatten(1)[:, :3] * self.k).to(x.dtype))

        for how, message in (("complex", "parameter 'k' is complex"), ("expand", "the elements of parameter 'k' share memory")):
            torch.jit.script(Turned(how)).save(self.folder / "net.pt")
            self.refused(message)

    def test_a_trace_with_the_batch_of_its_example(self):
        class Fixed(Odd):
            def forward(self, x):
                return self.fc(x.reshape(int(x.size(0)), -1)[:, :3])

        for samples, message in ((2, "forward() takes 2 samples, but not 3"), (4, "returns [4, 5] for 2 samples, not [2, 5]")):
            torch.jit.trace(Fixed().eval(), torch.ones(samples, 3, 6, 6), check_trace=False).save(self.folder / "net.pt")
            self.refused(message)

    def test_targets_that_the_loss_does_not_take(self):
        torch.jit.script(Odd()).save(self.folder / "net.pt")
        self.fails(self.train("model.targets={y={shape=[5]}}"), USAGE, "targets.y: loss = \"cross_entropy\" takes classes")
        self.fails(self.train("model.loss=mean_square"), USAGE, "targets.y: loss = \"mean_square\" takes numbers")

    def test_outputs_that_the_loss_does_not_take(self):
        torch.jit.script(Odd()).save(self.folder / "net.pt")
        self.fails(self.train("model.outputs={o={shape=[3]}}"), USAGE, "outputs.o.shape: the loss takes [5] for the target 'y', not [3]")

    def test_other_shapes_than_the_recipe_says(self):
        torch.jit.script(Net()).save(self.folder / "net.pt")
        self.refused("forward() throws", "Float [2, 4, 6, 6]", sets=["model.inputs.x.shape=[4, 6, 6]"])
        self.refused("'net.pt' returns [2, 5] for 2 samples, not [2, 4] as 'outputs' is", sets=["model.targets.y.classes=4"])


if __name__ == "__main__":
    unittest.main()
