"""The loss of a trained language model: on its own held-out text, and on other files."""

import json
import math

from command import CommandTest, main

USAGE, DATA = 2, 3


class EvaluateText(CommandTest):
    def figures(self, *words):
        return json.loads(self.succeeds(self.troika("evaluate", "runs/small", "--json", *words)).out)

    def test_held_out_text_has_the_loss_that_training_has_said(self):
        self.succeeds(self.train("train.evaluation_samples=all", "train.steps=4", 'train.metrics=["perplexity"]'))
        last = self.metrics()[-1]
        found = self.figures()
        self.assertAlmostEqual(found["loss"], last["held_out_loss"], delta=1e-6)
        self.assertAlmostEqual(found["bits_per_byte"], last["held_out_bits_per_byte"], delta=1e-6)
        self.assertAlmostEqual(found["perplexity"], math.exp(found["loss"]), delta=1e-3)
        shown = self.succeeds(self.troika("evaluate", "runs/small")).out
        self.assertRegex(shown, r"^loss [\d.]+, bits per byte [\d.]+, perplexity [\d.]+ over \d+ samples\n$")

    def test_other_files(self):
        self.succeeds(self.train("train.steps=30"))
        (self.folder / "same.txt").write_text(next((self.folder / "text").iterdir()).read_text())
        (self.folder / "other.txt").write_text("".join(chr(33 + 7 * i % 90) for i in range(2000)))
        same, other = self.figures("--data", "same.txt"), self.figures("--data", "other.txt")
        self.assertGreater(same["samples"], 0)
        self.assertLess(same["loss"], other["loss"] - 0.5)
        self.fails(self.troika("evaluate", "runs/small", "--data", "nowhere.txt"), DATA, "nowhere.txt")

    def fails(self, done, status, *needles):
        """There is a whole run in the folder."""
        self.assertEqual(done.status, status, str(done))
        for needle in needles:
            self.assertIn(needle, done.err)

    def test_there_is_nothing_to_predict(self):
        self.succeeds(self.train("train.steps=1"))
        self.fails(self.troika("predict", "runs/small", "--out", "p.csv"), USAGE, 'kind = "gpt"', "nothing to predict",
                   "`troika generate` samples text")
        self.assertFalse((self.folder / "p.csv").exists())


if __name__ == "__main__":
    main()
