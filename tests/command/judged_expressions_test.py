"""Losses that a recipe writes, over derivatives of a network: PyTorch judges their gradients, and what is predicted.

Run with pytest, in an environment with PyTorch.
"""

import csv
import json
import unittest

import torch
from safetensors.torch import load_file
from torch import nn

from command import CommandTest
from judged import Judged, two_steps

USAGE = 2
SAMPLES, CHUNK = 8, 2
# Energies and forces, and the residual of an equation with second derivatives.
LOSS = """
loss = "expression"
[loss]
targets = { energy = {}, pull = { shape = [2] } }
value = "squared_error(e, energy) + 0.3 * squared_error(forces, pull) + 0.1 * residual ** 2"
[loss.quantities]
e = { value = "outputs[:, 0]" }
forces = { value = "-derivative(e, features)", shape = [2] }
residual = { value = "derivative(forces[:, 1], features)[:, 1] - e * forces[:, 0] - 0.1 * torch.sin(e)" }
"""
MLP = """
kind = "mlp"
input_dim = 2
hidden_dims = [7, 5]
output_dim = 1
activation = "tanh"
"""
SCRIPT = """
kind = "torchscript"
path = "net.pt"
inputs = { features = { shape = [2] } }
outputs = { outputs = { shape = [1] } }
targets = { energy = {} }
"""
DATA = """
[data]
kind = "random"
held_out_fraction = 0.2
"""
TABLE = """
[data]
kind = "table"
files = ["points.csv"]
held_out_fraction = 0.2
[data.columns]
x = { as = "number" }
t = { as = "number" }
energy = { as = "label", into = "energy", missing = "ignore" }
pull_x = { as = "label", into = "pull" }
pull_t = { as = "label", into = "pull" }
"""
REST = two_steps(SAMPLES, CHUNK, momentum=0.9)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 7), nn.Linear(7, 5), nn.Linear(5, 1)])

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(torch.tanh(x) if index > 0 else x)
        return x


def quantities_of(network, x):
    """By hand, as a user of PyTorch would."""
    x = x.double().requires_grad_(True)
    e = network(x)[:, 0]
    forces = -torch.autograd.grad(e.sum(), x, create_graph=True)[0]
    bent = torch.autograd.grad(forces[:, 1].sum(), x, create_graph=True)[0][:, 1]
    return e, forces, bent - e * forces[:, 0] - 0.1 * torch.sin(e)


def losses_of(network, batch):
    e, forces, residual = quantities_of(network, batch["features"])
    return (e - batch["energy"]) ** 2 + 0.3 * ((forces - batch["pull"]) ** 2).mean(1) + 0.1 * residual**2


class JudgedExpressions(Judged):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.write(MLP)

    def write(self, model, data=DATA):
        (self.folder / "recipe.toml").write_text(f'name = "small"\n[model]{model}{LOSS}{data}{REST}')

    def judged(self, ranks, *sets, losses=losses_of):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        network = Perceptron().double()
        for step in (1, 2):
            network.load_state_dict(self.dumped(step, "parameters"))
            network.zero_grad()
            loss = losses(network, self.dumped(step, "batch")).mean()
            loss.backward()
            gradients = self.dumped(step, "gradients")
            self.assertEqual(set(gradients), set(dict(network.named_parameters())))
            largest = max(each.abs().max() for each in gradients.values())
            self.assertGreater(largest, 0)
            for name, parameter in network.named_parameters():
                self.assertLessEqual((gradients[name] - parameter.grad).abs().max(), 1e-10 * largest, name)
            self.assertAlmostEqual(self.metrics()[step - 1]["loss"], loss.item(), delta=1e-10 * abs(loss.item()))
        self.assertGreater(self.metrics()[-1]["held_out_loss"], 0)
        return load_file(self.run_folder / "model.safetensors")

    def test_forces_and_second_derivatives_in_every_layout(self):
        alone = self.judged(1)
        for ranks, *sets in ((2,), (4,), (2, "parallel.zero_stage=1"), (2, "parallel.zero_stage=2"), (2, "parallel.zero_stage=3"),
                             (1, "parallel.activation_checkpoint=full")):
            with self.subTest(ranks=ranks, sets=sets):
                for name, value in self.judged(ranks, *sets).items():
                    torch.testing.assert_close(value, alone[name], rtol=1e-12, atol=1e-12, msg=name)

    def test_a_torchscript_file(self):
        torch.jit.script(Perceptron()).save(self.folder / "net.pt")
        self.write(SCRIPT)
        for ranks, *sets in ((1,), (2, "parallel.zero_stage=2")):
            with self.subTest(ranks=ranks, sets=sets):
                self.judged(ranks, *sets)

    def test_missing_targets_leave_their_term_out(self):
        """As points of a boundary have a value, and those inside have none. Predictions are the quantities."""
        def losses(network, batch):
            e, forces, residual = quantities_of(network, batch["features"])
            missing = batch["energy"].isnan()
            found.append(missing)
            first = torch.where(missing, 0.0, e - batch["energy"]) ** 2
            return first + 0.3 * ((forces - batch["pull"]) ** 2).mean(1) + 0.1 * residual**2

        rows = [[x / 7, x % 3, "" if x % 2 else x / 5, x / 9 - 1, x % 4] for x in range(40)]
        with open(self.folder / "points.csv", "w", newline="") as file:
            csv.writer(file).writerows([["x", "t", "energy", "pull_x", "pull_t"], *rows])
        self.write(MLP, TABLE)
        found = []
        saved = self.judged(2, losses=losses)
        self.assertTrue(torch.cat(found).any() and not torch.cat(found).all())
        self.succeeds(self.troika("predict", "runs/small", "--out", "out.csv", "--data", "points.csv"))
        network = Perceptron().double()
        network.load_state_dict(saved)
        e, forces, residual = quantities_of(network, torch.tensor([row[:2] for row in rows], dtype=torch.float32))
        with open(self.folder / "out.csv", newline="") as file:
            predicted = list(csv.DictReader(file))
        self.assertEqual(len(predicted), len(rows))
        for index, row in enumerate(predicted):
            expected = [e[index], e[index], *forces[index], residual[index]]
            for name, value in zip(("outputs", "e", "forces_0", "forces_1", "residual"), expected):
                self.assertAlmostEqual(float(row[name]), value.item(), delta=1e-5)


class RefusedExpressions(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(f'name = "small"\n[model]{MLP}{LOSS}{DATA}{REST}')

    def refused(self, line, *sets):
        done = self.train(*sets, flags=["--dry-run"])
        self.assertEqual((done.status, done.out), (USAGE, ""), done)
        self.assertIn(line, done.error_lines[0])
        self.assertTrue(done.error_lines[0].startswith("troika: "), done)

    def test_one_line_names_the_expression(self):
        for line, value in (
                ("value gives [2, 1] for 2 samples, not one number for each", "outputs ** 2"),
                ("the loss of a sample depends on other samples", "((outputs - energy) ** 2).mean(1)"),
                ("squared_error() takes two tensors of one shape, not [2, 1] and [2]", "squared_error(outputs, energy)"),
                ("undefined value energie in '(e - energie) ** 2'", "(e - energie) ** 2"),
                ("expected ] but found ')'", "outputs[:, 0"),
                ("undefined value derivative", "derivative(e, features)[:, 0]"),
                ("value gives [] for 2 samples", "e.mean()"),
                ("the loss of a sample depends on other samples", "(torch.log(features[:, 0:1]) + outputs - energy).square().mean(1)"),
                ("the loss depends on no parameter", "squared_error(e.detach(), energy)"),
                ("the loss has no gradient: derivative for aten::floor_divide", "e.square() // 2"),
                ("the loss is another each time", "e * torch.rand_like(e)"),
                ("the loss is not finite for any inputs", "torch.log(-features[:, 0].square()) * e"),
                ("value gives numbers of type Long", "e.long()"),
                ("'3.0' gives no tensor", "3.0")):
            with self.subTest(value=value):
                self.refused(line, f"loss.value={json.dumps(value)}")

    def test_one_line_names_the_quantity(self):
        for line, value, *shape in (
                ("quantities.q.value: derivative() is by an input as a whole", "derivative(outputs, features[:, 0])"),
                ("quantities.q.value: derivative() is by an input as a whole", "derivative(outputs, outputs)"),
                ("quantities.q.value: derivative() is of one number a sample, not of [2, 2]", "derivative(features * 2, features)"),
                ("quantities.q.value gives [2, 2] for 2 samples, not [2]", "derivative(outputs, features)"),
                ("'q' of a sample depends on other samples", "(outputs - outputs[:, 0]).mean(1)"),
                ("quantities.q.value: undefined value energy", "energy")):
            with self.subTest(value=value):
                self.refused(line, 'loss.value="q"', f"loss.quantities={{ q = {{ value = {json.dumps(value)} }} }}")

    def test_the_line_is_that_of_the_expression(self):
        text = (self.folder / "recipe.toml").read_text()
        (self.folder / "recipe.toml").write_text(text.replace("-derivative(e,", "-derivative(f,"))
        line = text[:text.index("-derivative(e,")].count("\n") + 1
        self.refused(f"recipe.toml:{line}: [loss] quantities.forces.value: undefined value f")

    def test_what_does_not_go_with_it(self):
        self.refused("two tensors are called 'energy'", 'loss.quantities={ energy = { value = "outputs[:, 0]" } }')
        self.refused("'sample_weights' is no name", 'loss.targets={ energy = {}, pull = { shape = [2] }, sample_weights = {} }')
        self.refused("'sin(x)' is no name", 'loss.targets={ "sin(x)" = {} }')
        self.refused("'rmse' judges outputs as a loss takes them, and loss = \"expression\" takes none", 'train.metrics=["rmse"]')
        self.refused("kind = \"mlp\" does not split its layers", "parallel.tensor=2")
        self.refused("the model has 1 layer", "parallel.pipeline=2")
        self.refused("value: must not be empty", 'loss.value=""')


if __name__ == "__main__":
    unittest.main()
