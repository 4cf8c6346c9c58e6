"""Text columns: token ids and their mask for a network from Python, on one and two ranks and for other tables.

Run with pytest, in an environment with PyTorch and pyarrow.
"""

import json
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch
from safetensors.numpy import load_file
from torch import nn

from command import CommandTest

LENGTH = 12
RECIPE = """
name = "small"
[model]
kind = "torchscript"
path = "net.pt"
targets = { y = { classes = 2 } }
[model.inputs]
ids = { shape = [12], dtype = "int64", classes = 256 }
"ids.mask" = { shape = [12] }
[data]
kind = "table"
files = ["train.parquet"]
held_out_fraction = 0.2
[data.columns]
words = { as = "text", into = "ids" }
y = { as = "label" }
[train]
steps = 120
global_batch_size = 32
micro_batch_size = 16
precision = "fp64"
evaluate_every_steps = 120
evaluation_samples = "all"
metrics = ["accuracy"]
[optimizer]
kind = "adamw"
lr = 0.03
warmup_steps = 0
[debug]
dump_steps = [1]
[observe]
tensorboard = false
"""


class MeanOfTokens(nn.Module):
    """Scores of the mean of what the tokens stand for."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 8)
        self.scores = nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask.unsqueeze(-1).to(self.tokens.weight.dtype)
        return self.scores((self.tokens(ids) * mask).sum(1) / mask.sum(1).clamp(min=1))


def example(rows, seed):
    """Words of different lengths, and whether they have an 'a'."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("abcdefgh"), random.integers(1, 2 * LENGTH))) for _ in range(rows)]
    return {"words": words, "y": ["yes" if "a" in word[:LENGTH] else "no" for word in words]}


def tokens_of(word):
    ids = list(word.encode())[:LENGTH]
    return ids + [0] * (LENGTH - len(ids)), [1.0] * len(ids) + [0.0] * (LENGTH - len(ids))


class TableText(CommandTest):
    def test_trains_and_predicts(self):
        columns = example(400, 1)
        pq.write_table(pa.table(columns), self.folder / "train.parquet", row_group_size=90)
        torch.manual_seed(1)
        torch.jit.script(MeanOfTokens()).save(self.folder / "net.pt")
        (self.folder / "recipe.toml").write_text(RECIPE)
        losses = {}
        for ranks in (1, 2):
            self.succeeds(self.train(ranks=ranks, flags=("--overwrite",)))
            losses[ranks] = self.losses()
        np.testing.assert_allclose(losses[1], losses[2], rtol=1e-9)
        self.assertGreater(self.metrics()[-1]["held_out_accuracy"], 0.8)
        self.rows_are_those_of(columns)
        self.describes_itself()
        self.predicts_as_python()

    def test_the_tokenizer_of_a_network_from_python(self):
        """Word pieces between [CLS] and [SEP], filled up with [PAD], as transformers' tokenizers have them."""
        sentences = ["Hello, world!", "The na\u00efve fox", "a much longer sentence that has to be cut somewhere", "fox"] * 20
        special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
        pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        pieces.normalizer, pieces.pre_tokenizer = tokenizers.normalizers.BertNormalizer(), tokenizers.pre_tokenizers.BertPreTokenizer()
        pieces.train_from_iterator(sentences, tokenizers.trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False))
        pieces.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(name, pieces.token_to_id(name)) for name in ("[CLS]", "[SEP]")])
        pieces.save(str(self.folder / "tokenizer.json"))
        pieces.enable_truncation(LENGTH)
        pieces.enable_padding(pad_id=3, length=LENGTH)
        pq.write_table(pa.table({"words": sentences, "y": [i % 2 for i in range(len(sentences))]}), self.folder / "train.parquet")
        torch.jit.script(MeanOfTokens()).save(self.folder / "net.pt")
        (self.folder / "recipe.toml").write_text(RECIPE)
        self.succeeds(self.train("data.columns.words.tokenizer=tokenizer.json", "train.steps=1", flags=("--overwrite",)))
        expected = {tuple(each.ids): each.attention_mask for each in map(pieces.encode, sentences)}
        batch = load_file(self.run_folder / "dump/step-1/batch.safetensors")
        for ids, mask in zip(batch["ids"], batch["ids.mask"]):
            self.assertEqual(mask.tolist(), expected[tuple(ids.tolist())])
        self.assertEqual(json.loads((self.run_folder / "data.json").read_text())["columns"][0]["pads_with"], 3)

    def rows_are_those_of(self, columns):
        known = {tuple(tokens_of(word)[0]): (tokens_of(word)[1], y == "yes") for word, y in zip(*columns.values())}
        batch = load_file(self.run_folder / "dump/step-1/batch.safetensors")
        self.assertEqual(len(batch["ids"]), 32)
        for ids, mask, y in zip(batch["ids"], batch["ids.mask"], batch["y"]):
            self.assertEqual((mask.tolist(), bool(y)), known[tuple(ids.tolist())])

    def describes_itself(self):
        words = json.loads((self.run_folder / "data.json").read_text())["columns"][0]
        self.assertEqual((words["as"], words["length"], words["tokenizer"], words["pads_with"]), ("text", LENGTH, "bytes", 0))

    def predicts_as_python(self):
        other = example(50, 2)["words"]
        pq.write_table(pa.table({"words": other}), self.folder / "new.parquet")
        self.succeeds(self.troika("predict", self.run_folder, "--data", "new.parquet", "--out", "out.parquet"))
        found = pq.read_table(self.folder / "out.parquet").to_pydict()
        module = torch.jit.load(self.run_folder / "model.pt").double().eval()
        ids, mask = (torch.tensor(each) for each in zip(*map(tokens_of, other)))
        with torch.no_grad():
            expected = torch.softmax(module(ids, mask), 1).numpy()
        np.testing.assert_allclose(np.column_stack([found["probability_no"], found["probability_yes"]]), expected, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
