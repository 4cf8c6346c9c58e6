"""Models from TorchScript files: PyTorch judges gradients, updates and running statistics, and reads them back. It also judges the
derivatives with respect to inputs that programs in C ask for.

Run with pytest, in an environment with PyTorch and transformers.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import unittest

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from judged import Judged, two_steps
from script_modules import Answers, Averaged, Forces, Looking, Resnet18, Single

USAGE = 2
SAMPLES, CHUNK = Judged.SAMPLES, Judged.CHUNK
RECIPE = f"""
name = "small"
[model]
kind = "torchscript"
path = "net.pt"
inputs = {{ x = {{ shape = [3, 6, 6] }} }}
targets = {{ y = {{ classes = 5 }} }}
[data]
kind = "random"
""" + two_steps(SAMPLES, CHUNK)


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        if x.size(0) > 1:  # what a trace would lose
            x = x * 1.5
        return self.fc(self.drop(x.mean((2, 3)) + self.frozen))


class TwoInputs(nn.Module):
    """Embeddings of whole numbers beside values; a dictionary comes out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.fc = nn.Linear(5, 1)

    def forward(self, ids, values) -> dict[str, torch.Tensor]:
        joined = torch.cat((self.table(ids).mean(1), values), 1)
        return {"answer": self.fc(joined).squeeze(1), "joined": joined}


TWO_INPUTS = ("model.inputs={ids={shape=[4],classes=7},values={shape=[2]}}",
              "model.targets={answer={shape=[1]}}", "model.loss=mean_square")


class Chain(nn.Module):
    """Children in a row, as Sequential and torchvision's networks are."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 3, stride=2, padding=1))
        self.fc = nn.Linear(18, 5)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).flatten(1)) * self.scale


class ThreeOutputs(nn.Module):
    """Returns its scores, what it has before its last layer, and the class that it finds."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3 * 6 * 6, 4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        hidden = torch.tanh(self.stem(x.flatten(1)))
        scores = self.fc(hidden)
        return scores, hidden, scores.argmax(1)


class WithLoss(Net):
    """Returns its scores, its mean loss over the samples, and how many there are."""

    def forward(self, x, y):
        x = torch.relu(self.norm(self.stem(x)))
        scores = self.fc(self.drop((x * 1.5).mean((2, 3)) + self.frozen))
        return scores, nn.functional.cross_entropy(scores, y), torch.tensor(y.size(0))


class WithSum(Net):
    """Returns the sum of losses of some targets alone, and how many these are."""

    def forward(self, x, y) -> dict[str, torch.Tensor]:
        counts = (x[:, 0, 0, 0] > 0).to(x.dtype)
        x = torch.relu(self.norm(self.stem(x)))
        scores = self.fc(self.drop((x * 1.5).mean((2, 3)) + self.frozen))
        each = nn.functional.cross_entropy(scores, y, reduction="none")
        return {"loss": (each * counts).sum(), "count": counts.sum()}


OWN_LOSS = ("model.loss=none", "model.outputs={scores={shape=[5]},loss={},count={}}", "model.loss_output=loss")


UNITS = ["stem", "layers.0", "layers.1", "flatten", "fc"]


def bert():
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=24, max_position_embeddings=16, num_labels=3,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForSequenceClassification._from_config(config, attn_implementation="eager")


class Traced(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[0]


BERT = ("model.inputs={input_ids={shape=[6],classes=50},mask={shape=[6],classes=2}}",
        "model.targets={y={classes=3}}")


class JudgedTorchscript(Judged):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        torch.set_num_threads(1)
        (self.folder / "recipe.toml").write_text(RECIPE)

    def save(self, module, name="net.pt"):
        torch.jit.script(module).save(self.folder / name)
        return module

    def follow(self, module, ranks, inputs, target, loss):
        return super().follow(module, ranks, lambda net, rows: loss(net(*(rows[name] for name in inputs)), rows[target]))

    def judged(self, module, ranks, inputs, target, loss, *sets):
        self.trained(ranks, *sets)
        expected = self.follow(module, ranks, inputs, target, loss)
        saved = load_file(self.run_folder / "model.safetensors")
        script = torch.jit.load(self.run_folder / "model.pt")
        self.assertEqual(set(expected) - set(saved), set())  # it has buffers that Python does not save, too
        for found in (saved, script.state_dict()):
            for name, value in expected.items():
                bound = 1e-10 if found is saved else 1e-5  # the script keeps its own precision
                torch.testing.assert_close(found[name].double(), value.double(), rtol=bound, atol=bound, msg=name)
        return script

    def test_a_script_with_running_statistics(self):
        module = self.save(Net())
        loss = nn.CrossEntropyLoss(reduction="sum")
        for ranks, *sets in ((1,), (2,), (4,), (2, "parallel.zero_stage=2"), (2, "parallel.zero_stage=3"),
                             (1, "parallel.activation_checkpoint=full")):
            with self.subTest(ranks=ranks, sets=sets):
                script = self.judged(module, ranks, ["x"], "y", loss, *sets)
                self.assertEqual(script(torch.randn(4, 3, 6, 6)).shape, (4, 5))

    def test_resnet_18(self):
        module = self.save(Resnet18(5))
        loss = nn.CrossEntropyLoss(reduction="sum")
        self.judged(module, 2, ["x"], "y", loss, "model.inputs.x.shape=[3, 48, 48]")

    def test_units_of_a_script(self):
        module = self.save(Chain())
        loss = nn.CrossEntropyLoss(reduction="sum")
        units = f"model.units={UNITS}"
        for ranks, data, *sets in ((1, 1), (2, 2, "parallel.zero_stage=3"), (2, 1, "parallel.pipeline=2"),
                                   (4, 2, "parallel.pipeline=2", "parallel.zero_stage=3"),
                                   (2, 1, "parallel.pipeline=2", "parallel.pipeline_schedule=interleaved-1f1b", "parallel.virtual_stages=2")):
            with self.subTest(ranks=ranks, sets=sets):
                self.trained(ranks, units, *sets)
                self.assertEqual(set(self.follow(module, data, ["x"], "y", loss)),
                                 set(torch.jit.load(self.run_folder / "model.pt").state_dict()))
        whole = load_file(self.trained(1) / "model.safetensors")
        cut = load_file(self.trained(2, units, "parallel.pipeline=2") / "model.safetensors")
        self.assertEqual(set(whole), set(cut))
        for name, value in whole.items():
            torch.testing.assert_close(cut[name], value, rtol=1e-12, atol=1e-12, msg=name)

    def test_units_of_a_trace_with_a_file_for_evaluations(self):
        module, sample = Chain(), torch.randn(2, 3, 6, 6)
        torch.jit.trace(module.train(), sample, check_trace=False).save(self.folder / "net.pt")
        torch.jit.trace(module.eval(), sample, check_trace=False).save(self.folder / "eval.pt")
        self.succeeds(self.train(f"model.units={UNITS}", "model.evaluation_path=eval.pt", "parallel.pipeline=2", ranks=2))

    def test_buffers_that_forward_assigns(self):
        module = self.save(Averaged())
        loss = nn.CrossEntropyLoss(reduction="sum")
        units = "model.units=['body','head']"
        for ranks, *sets in ((1,), (2,), (1, "parallel.activation_checkpoint=full"), (2, units, "parallel.zero_stage=3")):
            with self.subTest(ranks=ranks, sets=sets):
                script = self.judged(module, ranks, ["x"], "y", loss, *sets)
                self.assertEqual(script.body.passes, 2 * SAMPLES / CHUNK / ranks)
        alone = load_file(self.trained(1) / "model.safetensors")
        cut = load_file(self.trained(2, units, "parallel.pipeline=2") / "model.safetensors")
        for name, value in alone.items():
            torch.testing.assert_close(cut[name], value, rtol=1e-12, atol=1e-12, msg=name)

    def test_the_keys_of_a_dictionary_are_the_names_of_outputs(self):
        module = self.save(Answers())
        loss = nn.CrossEntropyLoss(reduction="sum")
        self.judged(module, 1, ["x"], "y", lambda outputs, y: loss(outputs["scores"], y),
                    "model.outputs={scores={shape=[5]},hidden={shape=[5]}}")

    def test_targets_of_any_shape(self):
        class Numbers(Single):
            def forward(self, x):
                return self.fc(x.flatten(1)).squeeze(1)

        module = self.save(Numbers())
        self.judged(module, 2, ["x"], "y", lambda outputs, y: ((outputs - y) ** 2).sum(), "model.targets={y={}}", "model.loss=mean_square")
        module = self.save(nn.Sequential(nn.Conv2d(3, 1, 3, padding=1)))
        self.judged(module, 2, ["x"], "y", lambda outputs, y: nn.functional.binary_cross_entropy_with_logits(outputs, y.double()) * CHUNK,
                    "model.targets={y={shape=[1,6,6]}}", "model.loss=binary_cross_entropy", "data.held_out_fraction=0.1",
                    "train.metrics=['accuracy','auc','f1']")
        self.assertEqual({"held_out_accuracy", "held_out_auc", "held_out_f1"} - set(self.metrics()[-1]), set())

    def test_forces_that_forward_differentiates(self):
        """In evaluation too, and where the forward pass runs again."""
        module = self.save(Forces())
        for ranks, *sets in ((2,), (1, "parallel.activation_checkpoint=full")):
            self.judged(module, ranks, ["x"], "y", lambda forces, y: ((forces - y) ** 2).flatten(1).mean(1).sum(),
                        "model.targets={y={shape=[3,6,6]}}", "model.loss=mean_square", "data.held_out_fraction=0.1", *sets)
            self.assertGreater(self.metrics()[-1]["held_out_loss"], 0)

    def differentiated(self, recipe, inputs, differentiate, **more):
        """What troika_model_input_gradients() gives, in a process of its own."""
        request = {"recipe": recipe, "samples": len(next(iter(inputs.values()))), "differentiate": differentiate,
                   "inputs": {name: each.flatten().tolist() for name, each in inputs.items()}, **more}
        done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("c_calls.py"), os.environ["TROIKA_SHARED"]],
                              input=json.dumps(request), capture_output=True, text=True, cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def judge_input_gradients(self, module, recipe, inputs, differentiate, **more):
        """`module` gives outputs by name. The first is meant where none is named, and the sum where the component is -1."""
        for (output, component, names), found in zip(differentiate, self.differentiated(recipe, inputs, differentiate, **more)):
            with self.subTest(output=output, component=component):
                variables = {name: each.clone().requires_grad_(each.is_floating_point()) for name, each in inputs.items()}
                outputs = module(**variables)
                value = outputs[output] if output else next(iter(outputs.values()))
                value = value.reshape(len(value), -1)
                number = value.sum() if component < 0 else value[:, component].sum()
                expected = torch.autograd.grad(number, [variables[name] for name in names], allow_unused=True)
                for name, gradient in zip(names, expected):
                    gradient = torch.zeros_like(inputs[name]) if gradient is None else gradient
                    off = (torch.tensor(found[name], dtype=torch.double).reshape(gradient.shape) - gradient).abs().max()
                    self.assertLessEqual(off, 1e-10 * gradient.abs().max(), name)

    def test_input_gradients_of_perceptrons(self):
        functions = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "tanh": torch.tanh}
        for activation, function in functions.items():
            recipe = (f'seed = 3\n[model]\nkind = "mlp"\ninput_dim = 5\nhidden_dims = [16, 8]\noutput_dim = 3\n'
                      f'activation = "{activation}"\nloss = "mean_square"\n[train]\nprecision = "fp64"\ndevice = "cpu"\n')

            def network(features):
                values = load_file(self.folder / "net.safetensors")
                for layer in range(3):
                    features = nn.functional.linear(features, values[f"layers.{layer}.weight"], values[f"layers.{layer}.bias"])
                    features = function(features) if layer < 2 else features
                return {"outputs": features}

            self.judge_input_gradients(network, recipe, {"features": torch.randn(7, 5, dtype=torch.double)},
                                       [["outputs", component, ["features"]] for component in (0, 2, -1)] + [[None, 1, ["features"]]],
                                       save="net.safetensors")

    def test_input_gradients_of_scripts(self):
        header = '[model]\nkind = "torchscript"\npath = "net.pt"\nloss = "mean_square"\n'
        footer = '[train]\nprecision = "fp64"\ndevice = "cpu"\n'
        two = self.save(TwoInputs()).double().eval()
        self.judge_input_gradients(
            lambda ids, values: two(ids, values), header + 'inputs = {ids = {shape = [4], classes = 7}, values = {shape = [2]}}\n'
            'targets = {answer = {shape = [1]}}\noutputs = {answer = {shape = [1]}, joined = {shape = [5]}}\n' + footer,
            {"ids": torch.randint(7, (6, 4)), "values": torch.randn(6, 2, dtype=torch.double)},
            [["answer", 0, ["values"]], ["joined", 4, ["values"]], ["joined", 0, ["values"]], [None, -1, ["values"]]])
        images = {"x": torch.randn(4, 3, 6, 6, dtype=torch.double)}
        shape = 'inputs = {x = {shape = [3, 6, 6]}}\ntargets = {y = {shape = [5]}}\n'
        net = self.save(Net(dropout=0.5)).double().eval()  # as it predicts: without dropout, with the running statistics
        self.judge_input_gradients(lambda x: {"scores": net(x)}, header + shape + "outputs = {scores = {shape = [5]}}\n" + footer, images,
                                   [["scores", component, ["x"]] for component in (0, 4, -1)])
        several = self.save(ThreeOutputs()).double().eval()
        self.judge_input_gradients(
            lambda x: dict(zip(("scores", "hidden", "classes"), several(x))), header + shape +
            'outputs = {scores = {shape = [5]}, hidden = {shape = [4]}, classes = {shape = [], dtype = "int64"}}\n' + footer, images,
            [["scores", 2, ["x"]], ["hidden", 3, ["x"]], ["hidden", -1, ["x"]]])

    def test_gradients_of_a_sparse_embedding(self):
        module = self.save(Looking(sparse=True))
        dense = Looking()
        dense.load_state_dict(module.state_dict())
        loss = nn.CrossEntropyLoss(reduction="sum")
        self.judged(dense, 2, ["ids"], "y", loss, "model.inputs={ids={shape=[4],classes=7}}")

    def test_several_inputs_and_a_dictionary_of_outputs(self):
        module = self.save(TwoInputs())

        def loss(outputs, target):
            return ((outputs["answer"] - target[:, 0]) ** 2).sum()

        for ranks in (1, 2):
            self.judged(module, ranks, ["ids", "values"], "answer", loss, *TWO_INPUTS)

    def test_a_loss_of_its_own_has_the_gradients_of_ours(self):
        module = Net()
        self.save(module)
        own = WithLoss()
        own.load_state_dict(module.state_dict())
        self.save(own, "own.pt")
        for ranks in (1, 2):
            self.trained(ranks)
            expected = {step: self.dumped(step, "gradients") for step in (1, 2)}
            losses = [(line["loss"], line.get("held_out_loss")) for line in self.metrics()]
            for counted in ((), ("model.weight_output=count",)):
                self.trained(ranks, "model.path=own.pt", *OWN_LOSS, *counted)
                for step, gradients in expected.items():
                    found = self.dumped(step, "gradients")
                    self.assertEqual(set(found), set(gradients))
                    largest = max(each.abs().max() for each in gradients.values())
                    for name, gradient in gradients.items():
                        self.assertLessEqual((found[name] - gradient).abs().max(), 1e-12 * largest, name)
                for line, (loss, held_out) in zip(self.metrics(), losses):
                    self.assertAlmostEqual(line["loss"], loss, delta=1e-12)
                    if held_out is not None:
                        self.assertAlmostEqual(line["held_out_loss"], held_out, delta=1e-12)

    def test_the_weight_of_its_own_loss_divides_once(self):
        """Microbatches count different numbers of targets; the mean is over all of them."""
        module = self.save(WithSum())
        sets = ("model.loss=none", "model.outputs={loss={},count={}}", "model.weight_output=count", "model.loss_reduction=sum")
        for ranks in (1, 2):
            self.trained(ranks, *sets)
            batch = self.dumped(1, "batch")
            share, total, counted, sums = SAMPLES // ranks, 0, 0, {}
            for rank in range(ranks):
                replica = copy.deepcopy(module).double().train()
                for first in range(rank * share, (rank + 1) * share, CHUNK):
                    outputs = replica(batch["x"][first:first + CHUNK].double(), batch["y"][first:first + CHUNK])
                    outputs["loss"].backward()
                    total, counted = total + outputs["loss"].item(), counted + int(outputs["count"])
                for name, parameter in replica.named_parameters():
                    if parameter.grad is not None:
                        sums[name] = sums.get(name, 0) + parameter.grad
            self.assertNotIn(counted, (0, SAMPLES))
            found = self.dumped(1, "gradients")
            self.assertEqual(set(found), set(sums))
            for name, gradient in sums.items():
                torch.testing.assert_close(found[name], gradient / counted, rtol=1e-10, atol=1e-12, msg=name)
            self.assertAlmostEqual(self.losses()[0], total / counted, delta=1e-12)

    def test_predicts_what_it_returns_beside_its_loss(self):
        self.save(WithLoss())
        self.trained(2, *OWN_LOSS, "data.held_out_fraction=0.1")
        self.succeeds(self.troika("predict", self.run_folder, "--samples", 6, "--out", "out.safetensors"))
        self.assertEqual({name: tuple(each.shape) for name, each in load_file(self.folder / "out.safetensors").items()},
                         {"sample": (6,), "scores": (6, 5), "count": (6, 1)})
        self.succeeds(self.troika("evaluate", self.run_folder, "--samples", 6))
        self.save(WithSum())
        self.trained(1, "model.loss=none", "model.outputs={loss={},count={}}", "model.weight_output=count", "data.held_out_fraction=0.1")
        done = self.troika("predict", self.run_folder, "--samples", 6, "--out", "out.csv")
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("gives no outputs: there is nothing to predict", done.err)

    def test_predicts_all_outputs_behind_that_of_the_loss(self):
        self.save(ThreeOutputs())
        outputs = "model.outputs={scores={shape=[5]},hidden={shape=[4]},best={dtype='int64'}}"
        self.trained(1, outputs, "data.held_out_fraction=0.1", "debug.dump_steps=[]")
        self.succeeds(self.troika("predict", self.run_folder, "--samples", 6, "--out", "out.csv"))
        header, *rows = (self.folder / "out.csv").read_text().splitlines()
        self.assertEqual(header.split(","), ["sample", "class", *(f"probability_{i}" for i in range(5)),
                                             *(f"hidden_{i}" for i in range(4)), "best"])
        for row in rows:
            self.assertEqual(row.split(",")[1], row.split(",")[-1])
        self.trained(1, outputs.replace("hidden", "class"), "data.held_out_fraction=0.1", "debug.dump_steps=[]")
        done = self.troika("predict", self.run_folder, "--samples", 6, "--out", "out.csv")
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("two columns of the predictions would be called 'class'", done.err)

    def test_a_traced_transformer(self):
        module = Traced(bert()).eval()
        torch.jit.trace(module, (torch.ones(2, 6, dtype=torch.int64),) * 2, check_trace=False).save(self.folder / "net.pt")
        loss = nn.CrossEntropyLoss(reduction="sum")
        for ranks in (1, 2, 4):
            self.judged(module, ranks, ["input_ids", "mask"], "y", loss, *BERT)

    def test_a_run_with_dropout_repeats_itself(self):
        self.save(Net(dropout=0.5))
        first = load_file(self.trained(2) / "model.safetensors")
        second = load_file(self.trained(2) / "model.safetensors")
        other = load_file(self.trained(2, "seed=7") / "model.safetensors")
        for name, value in first.items():
            self.assertTrue(torch.equal(value, second[name]), name)
        self.assertFalse(torch.equal(first["fc.weight"], other["fc.weight"]))

    def test_narrower_precisions_compute_with_autocast(self):
        self.save(Net())
        losses = {}
        for precision in ("fp32", "bf16", "fp16"):
            self.trained(2, f"train.precision={precision}")
            losses[precision] = [line["loss"] for line in self.metrics()]
        for precision in ("bf16", "fp16"):
            for own, right in zip(losses[precision], losses["fp32"]):
                self.assertAlmostEqual(own, right, delta=0.02)
        self.assertNotEqual(losses["bf16"], losses["fp32"])

    def test_a_file_in_fp64(self):
        for precision in ("fp64", "fp32"):
            with self.subTest(precision):
                self.save(Net().double())
                self.succeeds(self.train("train.steps=2", f"train.precision='{precision}'", flags=("--overwrite",)))
                trained = torch.jit.load(self.run_folder / "model.pt")
                self.assertEqual({each.dtype for each in trained.state_dict().values() if each.is_floating_point()}, {torch.float64})

    def test_a_trace_takes_a_file_for_evaluations(self):
        module = Net(dropout=0.5)
        sample = torch.randn(2, 3, 6, 6)
        torch.jit.trace(module.train(), sample, check_trace=False).save(self.folder / "net.pt")
        self.fails(self.train(), USAGE, "'net.pt' gives other outputs each time in evaluation", "evaluation_path")
        torch.jit.trace(module.eval(), sample, check_trace=False).save(self.folder / "eval.pt")
        self.succeeds(self.train("model.evaluation_path=eval.pt", ranks=2))


if __name__ == "__main__":
    unittest.main()
