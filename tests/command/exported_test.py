"""kind = "exported" from end to end: a run, what it leaves, and files that are refused.

Run with pytest, in an environment with PyTorch and transformers.
"""

import json
import shutil
import unittest
import zipfile

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from exported_networks import BERT, NETWORKS, export, file_of
from exported_runs import RECIPE, ExportedRuns
from going_on import GoingOnTest

USAGE = 2


class Moody(nn.Module):
    """Whose layers compute otherwise in evaluation, but for the batch-norm without statistics."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.plain = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)
        self.drop, self.gru, self.head = nn.Dropout(0.5), nn.GRU(16, 6, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        x = self.plain(torch.relu(self.norm(self.conv(x))))
        return self.head(self.gru(self.drop(x.flatten(2)))[0].mean(1))


class Depth(nn.Module):
    """Whose layer is left out for some samples of training, as timm's DropPath does."""

    def __init__(self, width=4):
        super().__init__()
        self.fc, self.head = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        hidden = self.fc(x)
        return self.head(hidden * (torch.rand(x.size(0), 1) > 0.1) if self.training else hidden)


class Writing(nn.Module):
    """Whose dropout of nothing returns its input, which it writes to."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = nn.functional.dropout(x, 0.0, self.training)
        x += 1
        return self.fc(x)


class Root(nn.Module):
    """With a second result whose derivative is not finite, and which the loss does not take."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.fc(x)
        return x, (x * 0).sqrt()


class Hard(nn.Module):
    """Whose modules are hard to run again: a view that is written to, running statistics, and those above."""

    def __init__(self):
        super().__init__()
        self.view, self.norm = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(8, 8))
        self.writing, self.root = Writing(), Root()

    def forward(self, x):
        x = self.norm(nn.functional.relu(self.view(x), inplace=True))
        logits, root = self.root(self.writing(x * 2).mean(1))
        return {"logits": logits, "root": root}


class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x):
        scores = self.fc(x)
        with torch.no_grad():
            mean = self.mean.view(1, 4)
        mean.mul_(0.9).add_(0.1 * x.detach().mean(0, keepdim=True))
        return scores


class GoesOn(GoingOnTest):
    def test_with_the_same_bits(self):
        """A network with dropout, a GRU and statistics of batches goes on from its second step."""
        torch.manual_seed(1)
        export(Moody(), {"x": torch.randn(3, 2, 4, 4)}, self.folder / "net.pt2")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys="targets = { y = { classes = 3 } }"))
        sets = ("optimizer.kind=adamw", "optimizer.lr=0.01", "optimizer.schedule=constant", "checkpoint.every_steps=2", "debug.dump_steps=[]")
        self.succeeds(self.train("name=whole", *sets, "train.steps=4", ranks=2))
        self.succeeds(self.train(*sets, "train.steps=2", ranks=2))
        done = self.succeeds(self.train(*sets, "train.steps=4", ranks=2, flags=["--resume"]))
        self.assertIn("going on from the checkpoint of step 2 of 4", done.err)
        self.expect_same_as("whole")


class Exported(ExportedRuns):
    def test_bert_in_shards(self):
        """And that torch.export.load() reads what the run has trained."""
        module, program = self.judged("bert-classes", 2, "parallel.zero_stage=3")
        batch = NETWORKS["bert-classes"].inputs(4)
        expected = module(**batch).logits
        torch.testing.assert_close(program.module()(**batch)["logits"], expected, rtol=1e-4, atol=1e-5)

    def test_dropout_by_sample(self):
        """Masks, those of attention too, are the same on other ranks, in other microbatches, and in modules that are run again."""
        config = transformers.BertConfig(**{**BERT, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3})
        export(transformers.BertForSequenceClassification(config), NETWORKS["bert-classes"].inputs(3), self.folder / "net.pt2")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys=NETWORKS["bert-classes"].recipe))
        found = []
        for ranks, *sets in ((1,), (2, "train.micro_batch_size=3"), (1, 'model.checkpoint_modules=["bert.encoder.layer.*"]')):
            self.trained(ranks, *sets)
            found.append(self.dumped(2, "gradients"))
        largest = max(each.abs().max() for each in found[0].values())
        for other in found[1:]:
            for name, gradient in found[0].items():
                self.assertLessEqual((other[name] - gradient).abs().max(), 1e-12 * largest, name)
        layer = "bert.encoder.layer.0.attention.self.value.weight"
        again = self.dumped(1, "gradients")[layer]
        self.assertGreater((again - found[0][layer]).abs().max(), 1e-3 * largest)  # another step, other masks

    def test_modules_that_are_run_again(self):
        """With the same draws of dropout, to the bit; and with less memory."""
        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.3)) for _ in range(8)])
                self.head = nn.Linear(64, 3)

            def forward(self, x):
                for layer in self.layers:
                    x = x + layer(x)
                return self.head(x)

        export(Deep(), {"x": torch.randn(3, 64)}, self.folder / "net.pt2")
        recipe = RECIPE.format(path="net.pt2", keys="targets = { y = { classes = 3 } }")
        (self.folder / "recipe.toml").write_text(recipe)
        gradients, peaks = [], []
        for precision in ("fp32", "bf16"):
            for modules in ("[]", '["layers.*"]'):
                run = self.trained(1, "train.global_batch_size=2048", "train.micro_batch_size=2048", f"train.precision={precision}",
                                   f"model.checkpoint_modules={modules}")
                gradients.append(self.dumped(2, "gradients"))
                peaks.append(json.loads((run / "summary.json").read_text())["ranks"][0]["peak_tensor_bytes"])
            for name, value in gradients[-2].items():
                torch.testing.assert_close(gradients[-1][name], value, rtol=0, atol=0, msg=name)
            self.assertLess(peaks[-1], 0.5 * peaks[-2])
        self.refused("'net.pt2' has no module 'layer.*'", keys='targets = { y = { classes = 3 } }\ncheckpoint_modules = ["layer.*"]')

    def test_modules_that_are_hard_to_run_again(self):
        export(Hard(), {"x": torch.randn(3, 5, 4)}, self.folder / "net.pt2")
        keys = "targets = { y = { classes = 3 } }\noutputs = { logits = {} }"
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys=keys))
        found = []
        for modules in ("[]", '["view", "norm", "writing", "*oo*", "root"]'):
            run = self.trained(1, f"model.checkpoint_modules={modules}")
            found.append((self.dumped(2, "gradients"), load_file(run / "model.safetensors")))
        for plain, again in zip(*found):
            for name, value in plain.items():
                torch.testing.assert_close(again[name], value, rtol=0, atol=0, msg=name)

    def test_the_program_of_a_checkpoint(self):
        export(Averaging(), {"x": torch.randn(3, 4)}, self.folder / "net.pt2")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys="targets = { y = { classes = 3 } }"))
        run = self.trained(1, "checkpoint.every_steps=1", "checkpoint.keep=2")
        first = self.dumped(2, "parameters")["fc.weight"]  # after the first step
        for out, step, expected in (("one.pt2", 1, first), ("last.pt2", 2, load_file(run / "model.safetensors")["fc.weight"])):
            self.succeeds(self.troika("checkpoint", "export", "runs/small", out, "--step", step))
            found = torch.export.load(self.folder / out).state_dict["fc.weight"]
            torch.testing.assert_close(found, expected.float())
        done = self.troika("checkpoint", "export", "runs/small", "net.pt")
        self.assertEqual(done.status, USAGE)
        self.assertIn("'net.pt': a model of kind = \"exported\" is no program that ends in .pt", done.error_lines[0])

    def test_evaluation_is_that_of_a_script(self):
        """Although the program was exported in train mode: of batch-norms with and without statistics, dropout and a GRU."""
        module = Moody()
        torch.jit.script(module).save(self.folder / "net.pt")
        export(module, {"x": torch.randn(3, 2, 4, 4)}, self.folder / "net.pt2")
        keys = "targets = { y = { classes = 3 } }"
        losses = [self.held_out_losses("net.pt", "inputs = { x = { shape = [2, 4, 4] } }\n" + keys), self.held_out_losses("net.pt2", keys)]
        self.assertNotEqual(*losses[0])  # statistics have moved
        for script, program in zip(*losses):
            self.assertAlmostEqual(script, program, delta=1e-12)

    def held_out_losses(self, path, keys):
        """Of two steps that learn next to nothing, so that evaluations alone differ."""
        kind = "exported" if path.endswith("2") else "torchscript"
        recipe = RECIPE.format(path=path, keys=keys).replace('kind = "exported"', f'kind = "{kind}"')
        (self.folder / "recipe.toml").write_text(recipe)
        self.succeeds(self.train("data.held_out_fraction=0.1", "train.evaluate_every_steps=1", "optimizer.lr=1e-30", f"name={kind}",
                                 ranks=2, flags=["--overwrite"]))
        return [line["held_out_loss"] for line in self.metrics(self.folder / "runs" / kind)]

    def test_buffers_that_are_not_saved_and_writes_without_gradients(self):
        """An average that forward() keeps under no_grad(), through a view: it moves in training, and not in evaluation."""
        export(Averaging(), {"x": torch.randn(3, 4)}, self.folder / "net.pt2")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys="targets = { y = { classes = 3 } }"))
        moved = []
        for sets in ((), ("data.held_out_fraction=0.1", "train.evaluate_every_steps=1"), ("parallel.activation_checkpoint=full",)):
            moved.append(load_file(self.trained(1, *sets) / "model.safetensors")["mean"])
        batches = [self.dumped(step, "batch")["x"].double() for step in (1, 2)]
        expected = torch.zeros(4, dtype=torch.float64)
        for batch in batches:
            for first in range(0, self.SAMPLES, self.CHUNK):
                expected = 0.9 * expected + 0.1 * batch[first:first + self.CHUNK].mean(0)
        for found in moved:
            torch.testing.assert_close(found.double(), expected, rtol=1e-12, atol=1e-12)

    def test_names_and_extents(self):
        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                hidden = self.fc(x)
                if x.shape[1] > 6:
                    hidden = hidden * 2
                return {"states": (x.mean(1), hidden.mean(1)), "scores": hidden.sum(1)}

        samples = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
        program = torch.export.export(Nested().train(), (), {"x": torch.randn(3, 8, 4)}, dynamic_shapes=samples, strict=False)
        torch.export.save(program, self.folder / "net.pt2")
        keys = "targets = {{ y = {{ classes = 3 }} }}\ninputs = {{ x = {{ shape = [{}, 4] }} }}\noutputs = {{ scores = {{}}, states_2 = {{}} }}"
        self.refused("input 'x' is [5, 4] for a sample, and the program takes no less than 7 there", keys=keys.format(5))
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys=keys.format(9)))
        self.succeeds(self.train(ranks=1, flags=["--overwrite"]))
        self.refused("input 'x' has extents that were exported as dynamic, and the recipe does not say them",
                     keys="targets = { y = { classes = 3 } }\noutputs = { scores = {} }")

    def test_a_branch_of_training_that_stays(self):
        """Evaluations are those of a second file then, with the values that the first is trained to."""
        inputs = {"x": torch.randn(3, 4)}
        export(Depth(), inputs, self.folder / "net.pt2")
        done = self.refused("draws random numbers, in evaluation too")
        self.assertIn("exported_test.py line ", done.error_lines[0])
        keys = 'targets = { y = { classes = 3 } }\nevaluation_path = "eval.pt2"'
        export(nn.Linear(4, 3), {"input": torch.randn(3, 4)}, self.folder / "eval.pt2", trains=False)
        self.refused("the file for evaluations, 'eval.pt2', takes 'input' of Float [*, 4], and not 'x' of Float [*, 4]", keys=keys)
        torch.export.save(torch.export.export(Depth().eval(), (), inputs, strict=False), self.folder / "eval.pt2")
        self.refused("takes 'x' of Float [3, 4], and not 'x' of Float [*, 4]", keys=keys)
        export(Depth(width=5), inputs, self.folder / "eval.pt2", trains=False)
        self.refused("the file for evaluations, 'eval.pt2', has 'fc.weight', which 'net.pt2' has in another shape or type", keys=keys)
        module = Depth()
        export(module, inputs, self.folder / "net.pt2")
        export(module, inputs, self.folder / "eval.pt2", trains=False)
        torch.jit.script(module).save(self.folder / "net.pt")
        script, program = self.held_out_losses("net.pt", "inputs = { x = { shape = [4] } }\n" + keys.replace("eval.pt2", "same")), self.held_out_losses("net.pt2", keys)
        for one, other in zip(script, program):
            self.assertAlmostEqual(one, other, delta=1e-12)
        for path in ("net.pt2", "eval.pt2"):
            (self.folder / path).unlink()
        done = self.succeeds(self.troika("evaluate", "runs/exported", "--samples", 64, "--json"))
        self.assertAlmostEqual(json.loads(done.out)["loss"], program[1], delta=1e-12)
        saved = self.folder / "runs" / "exported"
        values = load_file(saved / "model.safetensors")
        for name, value in torch.export.load(saved / "model-eval.pt2").state_dict.items():
            torch.testing.assert_close(value, values[name].float())

    def test_programs_that_are_refused(self):
        class Ungraded(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                with torch.no_grad():
                    return self.fc(x)

        export(Ungraded(), {"x": torch.randn(3, 4)}, self.folder / "net.pt2")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path="net.pt2", keys="targets = { y = { classes = 3 } }"))
        done = self.train(ranks=1)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("'net.pt2': no result depends on a parameter that is trained", done.err)
        export(nn.Linear(4, 3).bfloat16(), {"input": torch.randn(3, 4).bfloat16()}, self.folder / "net.pt2")
        self.refused("parameter 'weight' is BFloat16, and float32 or float64 are trained")
        program = torch.export.export(nn.Linear(4, 3), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program.run_decompositions(), self.folder / "net.pt2")
        self.refused("comes of run_decompositions(), which drops detach() and no_grad()")

    def refused(self, message, path="net.pt2", keys="targets = { y = { classes = 3 } }"):
        (self.folder / "recipe.toml").write_text(RECIPE.format(path=path, keys=keys))
        done = self.train(ranks=1)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn(message, done.error_lines[0], str(done))
        return done

    def test_files_that_are_refused(self):
        good = file_of("bert-classes")
        loss = NETWORKS["bert-classes"].recipe
        self.refused("there is no file 'net.pt2'")
        (self.folder / "net.pt2").write_bytes(good.read_bytes()[:9000])
        self.refused("is cut short")
        (self.folder / "net.pt2").write_text("no archive")
        self.refused("'net.pt2' is no exported program: it is no archive")
        torch.jit.script(nn.Linear(2, 3)).save(self.folder / "net.pt2")
        self.refused("it is TorchScript")
        shutil.copyfile(good, self.folder / "net.pt2")
        self.refused("takes the target 'labels'", keys="targets = { labels = { classes = 3 } }\noutputs = { logits = {} }")
        self.refused("'net.pt2' has no input 'input_id'; did you mean 'input_ids'?", keys=loss + "\ninputs = { input_id = {} }")
        self.refused("input 'input_ids' is [12] for a sample, not [5]", keys=loss + "\ninputs = { input_ids = { shape = [5] } }")
        self.changed(good, "models/model.json", b'"torch.ops.aten.tanh.default"', b'"torch.ops.mine.tanh.default"')
        done = self.refused("calls 'torch.ops.mine.tanh.default', which is not among the operators that run here", keys=loss)
        self.assertIn("modeling_bert.py line ", done.error_lines[0])
        self.changed(good, "models/model.json", b'"torch.ops.aten.tanh.default"', b'"torch.ops.aten.from_file.default"')
        self.refused("calls 'torch.ops.aten.from_file.default', which is not among", keys=loss)

    def test_a_number_of_samples_that_is_fixed(self):
        torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.randn(3, 4),)), self.folder / "net.pt2")
        self.refused("input 'input' was exported for 3 samples alone")

    def changed(self, source, record, old, new):
        """A copy of an archive, with other text in a record."""
        with zipfile.ZipFile(source) as before, zipfile.ZipFile(self.folder / "net.pt2", "w") as after:
            for name in before.namelist():
                content = before.read(name)
                if name.endswith(record):
                    self.assertIn(old, content)
                    content = content.replace(old, new)
                after.writestr(name, content)


if __name__ == "__main__":
    unittest.main()
