"""Independent judges of what `troika train` computes: plain fp64 PyTorch, and the `transformers` package.

Every choice of the recipe's [model] and of data.pack comes in some run. Run with pytest, in an environment with
PyTorch and transformers.
"""

import pathlib
import shutil
import sys
from unittest import mock

from command import CommandTest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "judge"))
import dump
import gpt_reference
import transformers_reference

AGREES = 0
# 5 samples: no multiple of ranks x micro-batch.
COMMON = ("train.precision=fp64", "train.steps=3", "train.global_batch_size=5", "train.evaluate_every_steps=0",
          "debug.dump_steps=[1, 3]", "data.held_out_fraction=0", "model.layers=2", "model.heads=4", "model.dim=24")
LLAMA = ("model.kv_heads=2", "model.head_dim=8", "model.rope_theta=500.0")
GPT2 = ("model.norm=layernorm", "model.position=learned", "model.activation=gelu_tanh", "model.bias=true")
UNTIED = ("model.tied_embeddings=false", "model.kv_heads=1", "model.activation=gelu", "model.norm=layernorm",
          "model.norm_eps=1e-3", "model.head_dim=4")


class JudgedRuns(CommandTest):
    def judged(self, *sets, by=(gpt_reference,)):
        """Trains on 1 and on 2 ranks; returns the batch of the last step."""
        for ranks in (1, 2):
            name = f"on-{ranks}"
            self.succeeds(self.train(f"name={name}", *COMMON, *sets, ranks=ranks))
            run = self.folder / "runs" / name
            for judge in by:
                with self.subTest(judge=judge.__name__, ranks=ranks), \
                        mock.patch.object(sys, "argv", ["judge", str(run)]):
                    self.assertEqual(judge.main(), AGREES)
        return dump.load_dump(run, 3).batch

    def test_like_llama(self):
        batch = self.judged(*LLAMA, by=(gpt_reference, transformers_reference))
        self.assertEqual(batch["input_ids"].shape, (5, 32))
        self.assertEqual(batch["sample_ids"].tolist(), [10, 11, 12, 13, 14])

    def test_like_gpt2(self):
        self.judged(*GPT2, by=(gpt_reference, transformers_reference))

    def test_untied_with_one_head_of_keys_and_the_exact_gelu(self):
        self.judged(*UNTIED)

    def test_short_documents_are_padded(self):
        self.write_short_documents()
        batch = self.judged("data.pack=pad", *LLAMA)
        counts = (batch["targets"] != dump.IGNORED_TARGET).sum(dim=1)
        self.assertGreater(len(set(counts.tolist())), 1, "samples with different numbers of valid tokens")

    def test_packed_documents_do_not_see_each_other(self):
        self.write_short_documents()
        batch = self.judged("data.pack=isolated", *GPT2, "model.tied_embeddings=false")
        self.assertGreater(batch["document_ids"].unique().numel(), 2)

    def write_short_documents(self):
        shutil.rmtree(self.folder / "text")
        (self.folder / "text").mkdir()
        for i in range(60):
            (self.folder / "text" / f"short-{i}.txt").write_text(f"document {i}, " + "x" * (i % 17))
