"""Text from the model of a run: what it begins with, that it is text, and which models have none."""

import os
import subprocess
import unittest

from command import CommandTest, main
from launchers import PATIENCE_SECONDS, environment

USAGE = 2


class Generate(CommandTest):
    def generate(self, *words):
        """Standard output as bytes: text may not be UTF-8 as long as a test has not said so."""
        done = subprocess.run([os.environ["TROIKA"], "generate", "runs/small", *map(str, words)], cwd=self.folder,
                              env=environment(OMP_NUM_THREADS="1"), capture_output=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done.stdout

    def test_bytes(self):
        self.succeeds(self.train("train.steps=1"))
        with self.subTest("a prompt is gone on from"):
            self.assertTrue(self.generate("--prompt", "ab ", "--tokens", 20).startswith(b"ab "))
        with self.subTest("without one, a document begins"):
            first = self.generate("--tokens", 50)
            self.assertGreater(len(first), 30)
            self.assertNotIn(b"\0", first, "the separator is no text")
            self.assertEqual(self.generate("--tokens", 50, "--prompt", ""), first)
        with self.subTest("always UTF-8"):
            # A model that has learnt nothing, asked for any byte: most of them belong to no character.
            noise = self.generate("--tokens", 300, "--top-k", 0, "--temperature", 100)
            self.assertIn("\N{REPLACEMENT CHARACTER}", noise.decode("utf-8"))

    def test_pieces(self):
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt", "--train-tokenizer", "--vocab-size", 300))
        self.succeeds(self.train("data.kind=tokens", 'data.paths=["corpus/*.tokens"]', "model.vocab_size=300",
                                 "data.tokenizer=corpus/tokenizer.model", "train.steps=1"))
        text = self.generate("--prompt", "aa bb", "--tokens", 100, "--temperature", 10, "--top-k", 0)
        self.assertTrue(text.decode("utf-8").startswith("aa bb"), text)
        # The model's file may have moved since.
        (self.folder / "corpus" / "tokenizer.model").rename(self.folder / "moved.model")
        moved = self.generate("--prompt", "aa bb", "--tokens", 100, "--temperature", 10, "--top-k", 0,
                              "--tokenizer", "moved.model")
        self.assertEqual(moved, text)

    def test_random_tokens_are_no_text(self):
        self.succeeds(self.train("data.kind=random", "train.steps=1"))
        done = self.troika("generate", "runs/small", "--tokens", 1)
        self.assertEqual((done.status, done.out), (USAGE, ""), str(done))
        self.assertIn('\'runs/small\' was trained on data.kind = "random": its tokens stand for no text', done.err)


if __name__ == "__main__":
    main()
