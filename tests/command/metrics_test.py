"""Losses and metrics of recipes: scikit-learn judges the metrics, and layouts agree on them.

Run with pytest, in an environment with scikit-learn; METRICS_TOOL names the program of metrics_tool.cc.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
import sklearn.datasets
import sklearn.linear_model
import sklearn.metrics
from safetensors.numpy import load_file, save_file

from command import CommandTest

USAGE = 2
MISSING = -100

RECIPE = """
name = "small"
[model]
kind = "mlp"
input_dim = 6
hidden_dims = [8, 8]
output_dim = 2
[data]
kind = "random"
held_out_fraction = 0.1
[train]
steps = 6
global_batch_size = 12
micro_batch_size = 3
precision = "fp64"
deterministic = true
evaluate_every_steps = 3
[optimizer]
kind = "sgd"
lr = 0.1
warmup_steps = 0
[observe]
tensorboard = false
"""
ANSWERS = ("model.loss=binary_cross_entropy",)
VALUES = ("model.loss=mean_square",)


class AgainstScikitLearn(unittest.TestCase):
    def values(self, loss, outputs, targets, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "predictions.safetensors"
            save_file({"outputs": np.ascontiguousarray(outputs), "targets": np.ascontiguousarray(targets)}, path)
            done = subprocess.run([os.environ["METRICS_TOOL"], loss, str(path), *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def agree(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            self.assertAlmostEqual(found[name], value, delta=1e-12 * (1 + abs(value)), msg=name)

    def test_two_classes(self):
        x, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
        model = sklearn.linear_model.LogisticRegression(C=1e-4, max_iter=200).fit(x[:200], y[:200])
        score = np.round(model.decision_function(x), 1)  # with ties
        outputs = np.stack([np.zeros_like(score), score], 1)
        y = y.astype(np.int64)
        y[::7] = MISSING
        there = y != MISSING
        guess = outputs.argmax(1)
        self.agree(self.values("cross_entropy", outputs, y, "accuracy", "f1", "auc", "perplexity"), {
            "accuracy": sklearn.metrics.accuracy_score(y[there], guess[there]),
            "f1": sklearn.metrics.f1_score(y[there], guess[there]),
            "auc": sklearn.metrics.roc_auc_score(y[there], score[there]),
            "perplexity": np.exp(sklearn.metrics.log_loss(y[there], 1 / (1 + np.exp(-score[there]))))})

    def test_ten_classes(self):
        x, y = sklearn.datasets.load_digits(return_X_y=True)
        model = sklearn.linear_model.LogisticRegression(C=1e-4, max_iter=200).fit(x[:600], y[:600])
        outputs = model.decision_function(x)
        guess = outputs.argmax(1)
        self.agree(self.values("cross_entropy", outputs, y.astype(np.int64), "accuracy", "top_3", "f1"), {
            "accuracy": sklearn.metrics.accuracy_score(y, guess),
            "top_3": sklearn.metrics.top_k_accuracy_score(y, outputs, k=3),
            "f1": sklearn.metrics.f1_score(y, guess, average="macro")})

    def test_answers_and_values(self):
        draw = np.random.default_rng(3)
        outputs = np.round(draw.normal(size=(211, 3)), 1)
        answers = (outputs + draw.normal(size=outputs.shape) > 0.4).astype(np.float32)
        self.agree(self.values("binary_cross_entropy", outputs, answers, "accuracy", "f1", "auc"), {
            "accuracy": np.mean((outputs > 0) == answers),
            "f1": sklearn.metrics.f1_score(answers, outputs > 0, average="macro"),
            "auc": sklearn.metrics.roc_auc_score(answers, outputs, average="macro")})
        x, y = sklearn.datasets.load_diabetes(return_X_y=True)
        guess = sklearn.linear_model.LinearRegression().fit(x[:100], y[:100]).predict(x)
        self.agree(self.values("mean_square", guess[:, None], y[:, None], "rmse"),
                   {"rmse": sklearn.metrics.root_mean_squared_error(y, guess)})


class InRuns(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def evaluations(self, ranks, *sets):
        self.succeeds(self.train(*sets, ranks=ranks, flags=["--overwrite"]))
        lines = [line for line in self.metrics() if "held_out_loss" in line]
        return [{name: value for name, value in line.items() if name.startswith("held_out")} for line in lines]

    def test_layouts_agree(self):
        for words, sets in ((["accuracy", "f1", "auc", "perplexity"], ()),
                            (["accuracy", "f1", "auc"], ANSWERS), (["rmse"], VALUES)):
            sets = (*sets, f"train.metrics={json.dumps(words)}", 'train.evaluation_samples="all"')
            expected = self.evaluations(1, *sets)
            self.assertEqual(len(expected), 2)
            for line in expected:
                self.assertEqual(set(line), {"held_out_loss", *("held_out_" + word for word in words)})
            for layout in ((3,), (2, "parallel.pipeline=2"), (2, "parallel.zero_stage=3", "train.micro_batch_size=4")):
                with self.subTest(words=words, layout=layout):
                    found = self.evaluations(*layout, *sets)
                    for ours, theirs in zip(expected, found):
                        self.assertEqual(set(ours), set(theirs))
                        for name, value in ours.items():
                            self.assertAlmostEqual(theirs[name], value, delta=1e-11 * (1 + abs(value)), msg=name)

    def test_every_loss_learns_and_layouts_keep_its_gradients(self):
        for sets in (("loss.label_smoothing=0.1", "loss.class_weights=[1, 3]"), ANSWERS,
                     (*ANSWERS, "loss.positive_weights=[2, 0.5]"), VALUES):
            with self.subTest(sets):
                dumped = (*sets, "train.steps=120", "train.evaluate_every_steps=120", "debug.dump_steps=[2]",
                          "optimizer.lr=0.3", "train.global_batch_size=24", "train.micro_batch_size=6")
                files = []
                for layout in ((1,), (2,), (2, "parallel.pipeline=2")):
                    self.succeeds(self.train(*dumped, *layout[1:], ranks=layout[0], flags=["--overwrite"]))
                    files.append(load_file(self.run_folder / "dump/step-2/gradients.safetensors"))
                    losses = self.losses()
                    self.assertLess(sum(losses[-20:]), sum(losses[:20]))
                for other in files[1:]:
                    for name, gradient in files[0].items():
                        self.assertLessEqual(np.abs(other[name] - gradient).max(),
                                             1e-12 * np.abs(gradient).max() + 1e-14, name)

    def test_the_best_model_is_kept_and_a_run_without_gain_ends(self):
        sets = ('train.metrics=["auc"]', "train.best_metric=auc", "train.early_stop_patience=3",
                "train.evaluate_every_steps=1", "train.steps=200", "optimizer.lr=3.0", "optimizer.schedule=constant")
        done = self.train(*sets, ranks=2, flags=["--overwrite", "--json"])
        self.succeeds(done)
        summary = json.loads(done.out)
        figures = [line["held_out_auc"] for line in self.metrics()]
        best = max(figures)
        self.assertEqual(summary["best"], {"metric": "auc", "step": figures.index(best) + 1, "value": best})
        self.assertLess(len(figures), 200)
        self.assertEqual(len(figures), figures.index(best) + 1 + 3)
        self.assertEqual(summary["steps"], len(figures))
        self.assertIn("stopped early: 3 evaluations without a better auc", done.err)
        kept = load_file(self.run_folder / "best.safetensors")
        last = load_file(self.run_folder / "model.safetensors")
        self.assertEqual(set(kept), set(last))
        self.assertTrue(any((kept[name] != last[name]).any() for name in kept))
        # The model of that very step.
        again = self.train(*sets[:3], "train.early_stop_patience=0", *sets[3:],
                           f"train.steps={summary['best']['step']}", "name=again", ranks=2)
        self.succeeds(again)
        for name, value in load_file(self.folder / "runs/again/model.safetensors").items():
            self.assertTrue((kept[name] == value).all(), name)
        # With more patience it goes on where it has stopped.
        more = self.succeeds(self.train("train.early_stop_patience=5", *(each for each in sets if "patience" not in each),
                                        ranks=2, flags=["--resume"]))
        self.assertIn(f"going on from the checkpoint of step {len(figures)} of 200", more.err)
        self.assertGreater(len(self.metrics()), len(figures))
        self.assertEqual([line["held_out_auc"] for line in self.metrics()][:len(figures)], figures)

    def test_what_does_not_fit_is_one_clear_line(self):
        for sets, needles in (
                (('train.metrics=["acc"]',), ["[train] metrics: unknown metric 'acc'"]),
                (('train.metrics=["auc"]', "model.output_dim=3"), ["'auc' tells two classes apart, and there are 3"]),
                (('train.metrics=["rmse"]',), ["'rmse' measures values, and the loss is cross_entropy"]),
                (('train.metrics=["auc", "auc"]',), ["'auc' is there twice"]),
                (("train.best_metric=auc",), ["best_metric: 'auc' is not none, loss or one of metrics"]),
                (("train.best_metric=loss", "train.evaluate_every_steps=0"), ["best_metric needs evaluations"]),
                (("train.best_metric=loss", "data.held_out_fraction=0"), ["best_metric needs held-out samples"]),
                (("train.early_stop_patience=2",), ["early_stop_patience waits for a better best_metric"]),
                (("loss.class_weights=[1]",), ["class_weights has 1 numbers, and the model gives 2"]),
                (("loss.label_smoothing=1",), ["label_smoothing: 1.0 is out of range"]),
                (("loss.label_smoothing=0.1", *VALUES), ["'label_smoothing' is a key of loss = \"cross_entropy\""]),
                (("model.loss=hinge",), ["'hinge' is not one of cross_entropy"])):
            with self.subTest(sets):
                self.fails(self.train(*sets), USAGE, *needles)

