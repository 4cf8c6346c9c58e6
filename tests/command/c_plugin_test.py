"""A plug-in's model through troika.h, from a language that calls C: c_plugin_test.py LIBTROIKA SCORER_LIBRARY

The plug-in has two inputs, a target and a loss of its own.
"""

import ctypes
import math
import os
import pathlib
import sys
import tempfile
import unittest

LIBRARY, SCORER = map(pathlib.Path, sys.argv[1:3])
FLOAT, DOUBLE, INT32 = 0, 1, 2
ROWS = 6
RECIPE = f"""
[model]
kind = "plugin"
library = "{SCORER}"
options = {{ width = 6 }}
[train]
steps = 60
precision = "fp64"
device = "cpu"
[optimizer]
kind = "adamw"
lr = 0.05
weight_decay = 0.0
warmup_steps = 0
"""


class Array(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("count", ctypes.c_int64), ("type", ctypes.c_int)]


def array(name, values, number):
    """The array, and the numbers that it refers to."""
    numbers = (number * len(values))(*values)
    kind = {ctypes.c_float: FLOAT, ctypes.c_double: DOUBLE, ctypes.c_int32: INT32}[number]
    return Array(name.encode(), ctypes.addressof(numbers), len(values), kind), numbers


class Plugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.troika = ctypes.CDLL(str(LIBRARY), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        cls.troika.troika_last_error.restype = ctypes.c_char_p

    def setUp(self):
        self.session, self.model = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok("open_alone", None, ctypes.byref(self.session))
        self.ok("model_create", self.session, RECIPE.encode(), ctypes.byref(self.model))
        self.values, self.value_numbers = array("values", [math.sin(i) for i in range(4 * ROWS)], ctypes.c_float)
        self.group, self.group_numbers = array("group", [i % 3 for i in range(ROWS)], ctypes.c_int32)
        self.target, self.target_numbers = array("targets", [math.cos(i) for i in range(ROWS)], ctypes.c_double)
        self.addCleanup(self.ok, "close", self.session)
        self.addCleanup(self.ok, "model_free", self.model)

    def call(self, name, *arguments):
        return getattr(self.troika, f"troika_{name}")(*arguments)

    def ok(self, name, *arguments):
        self.assertEqual(self.call(name, *arguments), 0, self.troika.troika_last_error())

    def step(self, name="model_step_arrays"):
        """The status, and the loss."""
        loss = ctypes.c_double()
        inputs, targets = (Array * 2)(self.group, self.values), (Array * 1)(self.target)
        status = self.call(name, self.model, inputs, 2, targets, 1, ctypes.c_int64(ROWS), ctypes.byref(loss))
        return status, loss.value

    def test_learns_with_its_own_loss(self):
        losses = [self.step()[1] for _ in range(60)]
        self.assertLess(losses[-1], losses[0] / 10)
        score = (ctypes.c_double * ROWS)()
        outputs = (Array * 1)(Array(b"score", ctypes.addressof(score), ROWS, DOUBLE))
        self.ok("model_predict_arrays", self.model, (Array * 2)(self.values, self.group), 2, ctypes.c_int64(ROWS), outputs, 1)
        weights = [2 if group == 0 else 1 for group in self.group_numbers]
        squares = [w * (own - wanted) ** 2 for w, own, wanted in zip(weights, score, self.target_numbers)]
        status, loss = self.step("model_loss_arrays")
        self.assertEqual(status, 0)
        self.assertAlmostEqual(loss, sum(squares) / sum(weights), places=12)

    def test_is_saved_and_loaded(self):
        self.step()
        with tempfile.TemporaryDirectory(prefix="troika-test-") as folder:
            path = f"{folder}/scorer.safetensors".encode()
            self.ok("model_save", self.model, path)
            saved = self.step("model_loss_arrays")
            self.step()
            self.assertNotEqual(self.step("model_loss_arrays"), saved)
            self.ok("model_load", self.model, path)
            self.assertEqual(self.step("model_loss_arrays"), saved)

    def test_a_group_that_is_not_there(self):
        self.group_numbers[4] = 3
        status, _ = self.step()
        self.assertEqual((status, self.troika.troika_last_error()),
                         (2, b"input 'group': sample 4 has 3, not a whole number from 0 to 2"))
        self.group_numbers[4] = 1
        self.assertEqual(self.step()[0], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
