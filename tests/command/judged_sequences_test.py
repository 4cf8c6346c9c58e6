"""Networks from Python with several targets a sample, tokens and pixels: PyTorch judges their gradients and predictions.

Run with pytest, in an environment with PyTorch and transformers.
"""

import copy
import unittest

import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from judged import RATE, Judged
from judged_torchscript_test import CHUNK, RECIPE, SAMPLES

USAGE = 2
LENGTH, WORDS = 12, 256


class Causal(nn.Module):
    """Predicts the next token from all before it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, ids):
        return self.head(self.mix(self.table(ids))[0])


class Chain(nn.Module):
    """Likewise, of children in a row."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, WORDS)

    def forward(self, ids):
        return self.head(self.mix(self.table(ids)))


class OfDocuments(nn.Module):
    """Takes what is of one document alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.head = nn.Linear(16, WORDS)

    def forward(self, ids, document_ids):
        same = (document_ids.unsqueeze(2) == document_ids.unsqueeze(1)).to(self.head.weight.dtype).tril()
        return self.head(torch.bmm(same / same.sum(2, keepdim=True), self.table(ids)))


class Pixels(nn.Module):
    """Gives each pixel a class, with the classes in PyTorch's place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x)))


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False, return_dict=False)[0]


TEXT = ("data.kind=text", 'data.paths=["short/*.txt"]', "data.held_out_fraction=0.3", "model.evaluation_path=same",
        f"model.inputs={{ids={{shape=[{LENGTH}],dtype='int64',classes={WORDS}}}}}",
        f"model.targets={{next={{shape=[{LENGTH}],dtype='int64',classes={WORDS}}}}}")
PIXELS = ("model.targets={y={shape=[6,6],dtype='int64',classes=5}}", "model.outputs={logits={shape=[5,6,6]}}")


class JudgedSequences(Judged):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        torch.set_num_threads(1)
        (self.folder / "recipe.toml").write_text(RECIPE)
        (self.folder / "short").mkdir()
        for i in range(12):  # of odd lengths, so that some targets do not count
            (self.folder / "short" / f"{i}.txt").write_text("".join(chr(97 + (i + k * k) % 26) for k in range(5 + 4 * i)))

    def save(self, module, name="net.pt"):
        torch.jit.script(module).save(self.folder / name)
        return module

    def judged(self, module, inputs, target, classes_at):
        """Two steps of PyTorch on the dumped batches: the mean is over all targets that count."""
        module = copy.deepcopy(module).double().train()
        for step in (1, 2):
            batch = self.dumped(step, "batch")
            targets = batch[target]
            module.zero_grad()
            given = [batch[name].double() if batch[name].is_floating_point() else batch[name] for name in inputs]
            logits = module(*given).movedim(classes_at, 1)
            loss = functional.cross_entropy(logits, targets)  # leaves -100 out
            loss.backward()
            self.assertAlmostEqual(self.losses()[step - 1], loss.item(), delta=1e-10)
            gradients = self.dumped(step, "gradients")
            largest = max(each.grad.abs().max() for each in module.parameters())
            for name, parameter in module.named_parameters():
                self.assertLessEqual((gradients[name] - parameter.grad).abs().max(), 1e-10 * largest, name)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= RATE * parameter.grad
        return module

    def test_a_language_model_on_text(self):
        module, chain = self.save(Causal()), self.save(Chain(), "chain.pt")
        cut = ("model.path=chain.pt", 'model.units=["table","mix","head"]')
        for net, ranks, *sets in ((module, 1), (module, 2), (module, 4, "data.pack=pad"), (module, 2, "parallel.zero_stage=2"),
                                  (chain, 2, *cut, "parallel.pipeline=2"),
                                  (chain, 4, *cut, "parallel.pipeline=2", "parallel.zero_stage=3")):
            with self.subTest(ranks=ranks, sets=sets):
                self.trained(ranks, *TEXT, *sets)
                self.judged(net, ["ids"], "next", -1)
                if "data.pack=pad" in sets:
                    self.assertIn(-100, self.dumped(1, "batch")["next"])
                self.assertEqual(self.metrics()[0]["tokens"], self.counted(1))

    def test_a_trace_of_a_language_model_of_transformers(self):
        # Of a Qwen2 the norms compute in fp32 whatever the run does, so it cannot be judged to 1e-10.
        config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=4, n_positions=LENGTH, resid_pdrop=0.0,
                                         embd_pdrop=0.0, attn_pdrop=0.0)
        net = Logits(transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
        torch.jit.trace(net.double().eval(), torch.zeros(2, LENGTH, dtype=torch.int64)).save(self.folder / "net.pt")
        for ranks, *sets in ((1,), (2, "parallel.zero_stage=2")):
            self.trained(ranks, *TEXT, *sets)
            self.judged(net, ["ids"], "next", -1)

    def counted(self, step):
        return int((self.dumped(step, "batch")["next"] != -100).sum())

    def test_documents_that_are_kept_apart(self):
        net = self.save(OfDocuments())
        apart = (*TEXT[:4], TEXT[4].replace("}}", f"}},document_ids={{shape=[{LENGTH}],dtype='int64'}}}}"), TEXT[5])
        for ranks in (1, 2):
            self.trained(ranks, *apart, "data.pack=isolated")
            self.judged(net, ["ids", "document_ids"], "next", -1)
        for sets, message in (((*apart, "data.pack=pad"), "pack = \"isolated\""), ((*TEXT, "data.pack=isolated"), "document_ids")):
            done = self.train(*sets, flags=["--overwrite"])
            self.assertEqual(done.status, USAGE, str(done))
            self.assertIn(message, done.err)

    def test_it_writes_what_python_would_write(self):
        self.save(Causal())
        self.trained(2, *TEXT, "train.steps=40", "debug.dump_steps=[]", "optimizer.lr=1", "train.metrics=[\"perplexity\",\"accuracy\"]")
        found = self.succeeds(self.troika("generate", self.run_folder, "--prompt", "abc", "--tokens", 20, "--temperature", 0)).out
        net = torch.jit.load(self.run_folder / "model.pt").eval()
        ids = list(b"abc")
        for _ in range(20):
            seen = ids[-LENGTH:]
            ids.append(int(net(torch.tensor([seen + [0] * (LENGTH - len(seen))]))[0, len(seen) - 1].argmax()))
        self.assertEqual(found.rstrip("\n"), bytes(each for each in ids if each != 0).decode())
        done = self.succeeds(self.troika("evaluate", self.run_folder))
        self.assertRegex(done.out, r"^loss [\d.]+, bits per byte [\d.]+, perplexity [\d.]+, accuracy [\d.]+ over \d+ samples\n$")

    def test_a_class_for_each_pixel(self):
        net = self.save(Pixels())
        for ranks in (1, 2):
            self.trained(ranks, *PIXELS, "data.held_out_fraction=0.1", "train.metrics=[\"accuracy\"]")
            trained = self.judged(net, ["x"], "y", 1)
        self.assertEqual(len(self.dumped(1, "batch")["y"].unique()), 5)
        for name in ("out.safetensors", "out.csv", "out.parquet"):
            self.succeeds(self.troika("predict", self.run_folder, "--samples", 6, "--out", name))
        classes = load_file(self.folder / "out.safetensors")["class"]
        self.assertEqual(classes.shape, (6, 36))
        header, *rows = (self.folder / "out.csv").read_text().splitlines()
        self.assertEqual(header, ",".join(["sample", *(f"class_{i}" for i in range(36))]))
        self.assertEqual([[int(each) for each in row.split(",")[1:]] for row in rows], classes.tolist())
        self.assertLess(sum((each ** 2).sum() for each in trained.parameters()), 1e3)

    def test_shapes_that_do_not_go_together(self):
        self.save(Pixels())
        done = self.train(PIXELS[0], "model.outputs={logits={shape=[6,6,5]}}", flags=["--overwrite"])
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("returns [2, 5, 6, 6] for 2 samples, not [2, 6, 6, 5]", done.err)


assert SAMPLES % CHUNK == 0

if __name__ == "__main__":
    unittest.main()
