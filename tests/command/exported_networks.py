"""Networks that tests train from what torch.export has written, and the files, written once for all tests of a machine.

A network stands here with the inputs that it is exported with, and how its losses come of it.
"""

import dataclasses
import hashlib
import os
import pathlib
import tempfile
import typing

import torch
import transformers
from torch import nn

from script_modules import Resnet18

EXPORTED_SAMPLES = 3


@dataclasses.dataclass
class Network:
    make: typing.Callable  # the module
    inputs: typing.Callable  # of so many samples, by name
    loss: typing.Callable  # the sum of a microbatch's losses, of what it returns and of the batch
    recipe: str  # the keys of [model] beside kind and path
    casts: bool = False  # to float32, whatever the parameters are

    def call(self, module, batch):
        given = {name: batch[name] for name in self.inputs(1)}
        return self.loss(module(**given), batch)


def mean_times_samples(outputs, batch):
    return outputs["loss"] * len(next(iter(batch.values())))


def cross_entropy(key):
    return lambda outputs, batch: nn.functional.cross_entropy(outputs[key], batch["y"], reduction="sum")


IDS = {"input_ids": lambda n: torch.randint(0, 50, (n, 12)), "attention_mask": lambda n: torch.ones(n, 12, dtype=torch.int64)}


def ids(labels=None):
    def inputs(n):
        given = {name: make(n) for name, make in IDS.items()}
        return given | ({"labels": labels(n)} if labels else {})
    return inputs


def tokens(n):
    return torch.randint(0, 50, (n, 12))


def images(n, size=16):
    return {"pixel_values": torch.randn(n, 3, size, size)}


BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}


def bert_masked():
    return transformers.BertForMaskedLM(transformers.BertConfig(**BERT))


def bert_classes():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                                                                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4, num_labels=5,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def convnext():
    return transformers.ConvNextForImageClassification(transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, patch_size=2, image_size=16, num_labels=5, drop_path_rate=0.0))


SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 24, "max_position_embeddings": 16, "use_cache": False, "attention_dropout": 0.0}


def llama():
    rotary = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, rope_parameters=rotary))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=8))


def t5():
    """With gates, as T5 1.1 and Flan have them."""
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, use_cache=False))


class Resnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Resnet18(5)

    def forward(self, pixel_values):
        return {"logits": self.net(pixel_values)}


class Recurrent(nn.Module):
    """Both directions of two layers, and a GRU behind them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, input_ids):
        hidden, _ = self.lstm(self.table(input_ids))
        return {"logits": self.head(self.gru(hidden)[0][:, -1])}


class Unet(nn.Module):
    """Two levels with skips and batch-norm; gives an image."""

    def __init__(self):
        super().__init__()
        def block(before, after):
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
        self.down = nn.ModuleList([block(3, 4), block(4, 8)])
        self.middle = block(8, 8)
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 8, 2, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2)])
        self.join = nn.ModuleList([block(16, 8), block(8, 4)])
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, pixel_values):
        skips, hidden = [], pixel_values
        for down in self.down:
            hidden = down(hidden)
            skips.append(hidden)
            hidden = nn.functional.max_pool2d(hidden, 2)
        hidden = self.middle(hidden)
        for up, join, skip in zip(self.up, self.join, reversed(skips)):
            hidden = join(torch.cat((up(hidden), skip), 1))
        return {"image": self.head(hidden)}


class Triangle(nn.Module):
    """Updates a table of pairs along its triangles, as the Evoformer does: outgoing edges, and attention around the first node."""

    def __init__(self, channels=8, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.left, self.right, self.gate, self.out = (nn.Linear(channels, channels) for _ in range(4))
        self.attention_norm = nn.LayerNorm(channels)
        self.qkv, self.bias, self.back = nn.Linear(channels, 3 * channels), nn.Linear(channels, heads, bias=False), nn.Linear(channels, channels)

    def forward(self, pairs):
        z = self.norm(pairs)
        update = torch.einsum("bikc,bjkc->bijc", torch.sigmoid(self.left(z)) * z, torch.sigmoid(self.right(z)) * z)
        pairs = pairs + torch.sigmoid(self.gate(z)) * self.out(update)
        z = self.attention_norm(pairs)
        b, n, _, c = z.shape
        q, k, v = self.qkv(z).view(b, n, n, 3, self.heads, c // self.heads).permute(3, 0, 1, 4, 2, 5)
        bias = self.bias(z).permute(0, 3, 1, 2).unsqueeze(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5 + bias, -1)
        return pairs + self.back((weights @ v).transpose(2, 3).reshape(b, n, n, c))


class Evoformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Triangle(), Triangle()])
        self.head = nn.Linear(8, 1)

    def forward(self, pairs):
        for block in self.blocks:
            pairs = block(pairs)
        return {"distances": self.head(pairs).squeeze(-1)}


class Translating(nn.Module):
    """An encoder and a decoder, with a causal mask that forward() makes."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, input_ids, decoder_ids):
        mask = nn.Transformer.generate_square_subsequent_mask(decoder_ids.shape[1], dtype=self.table.weight.dtype)
        hidden = self.transformer(self.table(input_ids), self.table(decoder_ids), tgt_mask=mask, tgt_is_causal=True)
        return {"logits": self.head(hidden)}


class TwoLosses(nn.Module):
    """Takes ids and values; returns the sum of a loss of classes and one of numbers, and what it weighs."""

    def __init__(self):
        super().__init__()
        self.table, self.body = nn.Embedding(50, 4), nn.Linear(4 + 3, 8)
        self.classes, self.number = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, input_ids, values, label, amount):
        hidden = torch.tanh(self.body(torch.cat((self.table(input_ids).mean(1), values), 1)))
        scores, number = self.classes(hidden), self.number(hidden).squeeze(1)
        loss = nn.functional.cross_entropy(scores, label) + 0.5 * nn.functional.mse_loss(number, amount)
        return {"loss": loss, "scores": scores, "number": number}


OWN_LOSS = 'loss = "none"\ntargets = { labels = { classes = 50 } }'
NETWORKS = {
    "bert-masked": Network(bert_masked, ids(tokens), mean_times_samples, OWN_LOSS),
    "bert-classes": Network(bert_classes, ids(lambda n: torch.randint(0, 3, (n,))), mean_times_samples,
                            'loss = "none"\ntargets = { labels = { classes = 3 } }'),
    "gpt2": Network(gpt2, ids(tokens), mean_times_samples, OWN_LOSS, casts=True),
    "vit": Network(vit, images, cross_entropy("logits"), "targets = { y = { classes = 5 } }"),
    "convnext": Network(convnext, images, cross_entropy("logits"), "targets = { y = { classes = 5 } }"),
    "resnet": Network(Resnet, lambda n: images(n, 48), cross_entropy("logits"), "targets = { y = { classes = 5 } }"),
    "recurrent": Network(Recurrent, lambda n: {"input_ids": tokens(n)}, cross_entropy("logits"), "targets = { y = { classes = 3 } }"),
    "unet": Network(Unet, images, lambda outputs, batch: ((outputs["image"] - batch["y"]) ** 2).flatten(1).mean(1).sum(),
                    'loss = "mean_square"\ntargets = { y = { shape = [1, 16, 16] } }'),
    "evoformer": Network(Evoformer, lambda n: {"pairs": torch.randn(n, 6, 6, 8)},
                         lambda outputs, batch: ((outputs["distances"] - batch["y"]) ** 2).flatten(1).mean(1).sum(),
                         'loss = "mean_square"\ntargets = { y = { shape = [6, 6] } }'),
    "translating": Network(Translating, lambda n: {"input_ids": tokens(n), "decoder_ids": tokens(n)},
                           lambda outputs, batch: nn.functional.cross_entropy(
                               outputs["logits"].flatten(0, 1), batch["y"].flatten(), reduction="sum") / 12,
                           "targets = { y = { shape = [12], classes = 50 } }"),
    "llama": Network(llama, ids(tokens), mean_times_samples, OWN_LOSS, casts=True),
    "qwen3": Network(qwen3, ids(tokens), mean_times_samples, OWN_LOSS, casts=True),
    "t5": Network(t5, ids(tokens), mean_times_samples, OWN_LOSS, casts=True),
    "two-losses": Network(TwoLosses, lambda n: {"input_ids": tokens(n), "values": torch.randn(n, 3),
                                                "label": torch.randint(0, 3, (n,)), "amount": torch.randn(n)}, mean_times_samples,
                          'loss = "none"\ntargets = { label = { classes = 3 }, amount = {} }'),
}


class CastsToDouble(torch.overrides.TorchFunctionMode):
    """Makes of each cast to float32 one to float64, as a run in fp64 makes of those of a program."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        def double(value):
            return torch.float64 if value is torch.float32 else value
        return function(*map(double, args), **{key: double(value) for key, value in (kwargs or {}).items()})


def module_of(name):
    torch.manual_seed(1)
    return NETWORKS[name].make()


def file_of(name):
    """The network's file, which is written where it is not there yet."""
    source = pathlib.Path(__file__).read_bytes() + pathlib.Path(__file__).with_name("script_modules.py").read_bytes()
    versions = f"{torch.__version__} {transformers.__version__}".encode()
    folder = pathlib.Path(tempfile.gettempdir()) / f"troika-exported-{os.getuid()}-{hashlib.sha256(source + versions).hexdigest()[:16]}"
    path = folder / f"{name}.pt2"
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        export(module_of(name), NETWORKS[name].inputs(EXPORTED_SAMPLES), path)
    return path


def export(module, inputs, path, trains=True):
    """As docs/how-to/from-python.md says it."""
    samples = {name: {0: torch.export.Dim.DYNAMIC} for name in inputs}
    program = torch.export.export(module.train(trains), (), inputs, dynamic_shapes=samples, strict=False)
    unfinished = path.with_suffix(f".{os.getpid()}.pt2")
    torch.export.save(program, unfinished)
    unfinished.replace(path)
