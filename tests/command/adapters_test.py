"""Adapters beside a frozen base, judged by the packages `peft` and `transformers`.

Run with pytest, in an environment with PyTorch, transformers and peft.
"""

import json
import shutil

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from command import CommandTest
from exported_networks import NETWORKS, file_of, module_of
from exported_runs import RECIPE, ExportedRuns

USAGE, DATA = 2, 3
RATE, RANK, ALPHA = 0.5, 3, 12
GRADIENT_BOUND = 1e-10
SIZES = ("model.layers=2", "model.heads=4", "model.kv_heads=2", "model.dim=24", "model.head_dim=8", "train.precision=fp64")
STEPS = ("train.steps=2", f"optimizer.lr={RATE}", "optimizer.weight_decay=0", "optimizer.schedule=constant",
         "train.grad_clip=0", "debug.dump_steps=[1,2]", "train.evaluate_every_steps=0")

transformers.utils.logging.disable_progress_bar()


def without_casts():
    """Has Llama compute norms and angles in the type of its weights, where transformers casts to fp32."""

    def norm(self, x):
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self, x, position_ids):
        size = self.config.head_dim
        theta = self.config.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        turns = position_ids[:, :, None].double() * frequencies
        both = torch.cat([turns, turns], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    modeling_llama.LlamaRMSNorm.forward = norm
    modeling_llama.LlamaRotaryEmbedding.forward = angles


without_casts()


class Adapters(CommandTest):
    def base(self):
        """A trained model in runs/base, which peft has as a Llama; and the folder of an adapter that peft has made for it."""
        self.succeeds(self.train(*SIZES, "name=base", "train.evaluate_every_steps=0", "optimizer.lr=1"))
        self.succeeds(self.troika("checkpoint", "export", "runs/base", "base_hub"))
        self.adapter("adapter")

    def llama(self, folder="base_hub"):
        return AutoModelForCausalLM.from_pretrained(self.folder / folder, dtype=torch.float64).eval()

    def adapter(self, name, rank=RANK, targets=("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"), **more):
        torch.manual_seed(5)
        config = peft.LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=list(targets), task_type="CAUSAL_LM", **more)
        model = peft.get_peft_model(self.llama(), config, autocast_adapter_dtype=False)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.normal_(std=0.2)
        model.save_pretrained(self.folder / name)
        return model

    def adapted(self, *sets, ranks=1, flags=("--overwrite",)):
        return self.train(*SIZES, *STEPS, "model.from=runs/base", "adapter.kind=lora", *sets, ranks=ranks, flags=flags)

    def dumped(self, step, what):
        return load_file(self.run_folder / "dump" / f"step-{step}" / f"{what}.safetensors")

    def follow(self):
        """Two steps of peft on the dumped batches, from the adapter's folder. Returns the model."""
        model = peft.PeftModel.from_pretrained(self.llama(), self.folder / "adapter", is_trainable=True,
                                               autocast_adapter_dtype=False).eval()
        for step in (1, 2):
            batch, gradients = self.dumped(step, "batch"), self.dumped(step, "gradients")
            logits = model(batch["input_ids"]).logits
            model.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()).backward()
            expected = {name_here(name): each.grad for name, each in model.named_parameters() if each.grad is not None}
            self.assertEqual(expected.keys(), gradients.keys())
            largest = max(float(each.abs().max()) for each in expected.values())
            self.assertGreater(largest, 1e-4)
            for name, gradient in gradients.items():
                self.assertLessEqual(float((gradient - expected[name]).abs().max()), GRADIENT_BOUND * largest, name)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= RATE * parameter.grad
        return model

    def expect_values(self, model):
        """The run keeps the adapters alone, with the values that peft has."""
        saved = load_file(self.run_folder / "model.safetensors")
        expected = {name_here(name): each for name, each in model.named_parameters() if each.requires_grad}
        self.assertEqual(saved.keys(), expected.keys())
        for name, value in expected.items():
            self.assertLess(float((saved[name] - value).abs().max()), 1e-9, name)

    def expect_exports(self, model):
        """peft reads what leaves; the merged model gives the same logits."""
        for out in ("out", "merged"):
            shutil.rmtree(self.folder / out, ignore_errors=True)
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "out"))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "merged", "--merge"))
        config = json.loads((self.folder / "out/adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"]), (RANK, ALPHA))
        read = peft.PeftModel.from_pretrained(self.llama(), self.folder / "out", autocast_adapter_dtype=False).eval()
        ids = torch.tensor([list(b"the cat sat")])
        with torch.no_grad():
            expected = model(ids).logits
            self.assertLess(float((read(ids).logits - expected).abs().max()), 1e-9)
            self.assertLess(float((self.llama("merged")(ids).logits - expected).abs().max()), 1e-9)
            self.assertGreater(float((self.llama()(ids).logits - expected).abs().max()), 1e-3)

    def test_gradients_and_formats(self):
        self.base()
        self.succeeds(self.adapted("adapter.from=adapter"))
        model = self.follow()
        self.expect_values(model)
        self.expect_exports(model)
        # With two ranks, shards of all, and a run that stops and goes on: the same bits.
        one = load_file(self.run_folder / "model.safetensors")
        more = ("adapter.from=adapter", "parallel.zero_stage=3", "checkpoint.every_steps=1", "train.micro_batch_size=1")
        self.succeeds(self.adapted(*more, "train.steps=1", ranks=2))
        self.succeeds(self.adapted(*more, ranks=2, flags=("--resume",)))
        two = load_file(self.run_folder / "model.safetensors")
        for name, value in one.items():
            self.assertLess(float((two[name] - value).abs().max()), 1e-12, name)
        manifest = json.loads(next((self.run_folder / "checkpoints").glob("step-*/manifest.json")).read_text())
        self.assertEqual({name for name in manifest["tensors"]}, set(one), manifest["tensors"].keys())
        self.succeeds(self.troika("generate", "runs/small", "--prompt", "the", "--tokens", 4))
        self.succeeds(self.troika("evaluate", "runs/small"))

    def test_a_gpt2_leaves_and_comes_in(self):
        """Whose layers have other names there, and weights the other way round."""
        gpt2 = ("model.layers=2", "model.heads=4", "model.dim=24", "train.precision=fp64", "model.norm=layernorm",
                "model.position=learned", "model.activation=gelu_tanh", "model.bias=true", "train.evaluate_every_steps=0")
        more = ("model.from=runs/base", "adapter.kind=lora", 'adapter.match=["o_proj","up_proj"]', "adapter.alpha=64", "train.steps=2")
        self.succeeds(self.train(*gpt2, "name=base"))
        self.succeeds(self.troika("checkpoint", "export", "runs/base", "base_hub"))
        self.succeeds(self.train(*gpt2, *more))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "out"))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "merged", "--merge"))
        read = peft.PeftModel.from_pretrained(self.llama(), self.folder / "out", autocast_adapter_dtype=False).eval()
        ids = torch.tensor([list(b"the cat sat")])
        with torch.no_grad():
            self.assertLess(float((read(ids).logits - self.llama("merged")(ids).logits).abs().max()), 1e-9)
            self.assertGreater(float((read(ids).logits - self.llama()(ids).logits).abs().max()), 1e-3)
        before = load_file(self.run_folder / "model.safetensors")
        self.succeeds(self.train(*gpt2, *more[:2], *more[3:], "adapter.from=out", "debug.dump_steps=[1]", flags=["--overwrite"]))
        for key, value in self.dumped(1, "parameters").items():
            self.assertTrue(torch.equal(value, before[key]), key)
        self.succeeds(self.train(*gpt2, *more[:2], "train.steps=1", "name=all"))
        self.refused(self.troika("checkpoint", "export", "runs/all", "joined"), USAGE, "is a part of 'transformer.h.0.attn.c_attn.weight' there")

    def refused(self, done, status, needle):
        self.assertEqual(done.status, status, str(done))
        errors = [line for line in done.error_lines if line.startswith("troika: ")]
        self.assertEqual(len(errors), 1, str(done))
        self.assertIn(needle, errors[0])

    def test_refusals(self):
        self.base()
        self.adapter("other", rank=4)
        self.refused(self.adapted("adapter.from=other", f"adapter.rank={RANK}"), DATA, "([4, 24] there, [3, 24] here)")
        self.refused(self.adapted("adapter.from=adapter", 'adapter.match=["*.k_proj"]'), DATA, "k_proj.lora_A.weight")
        self.refused(self.adapted('adapter.match=["*.qkv"]'), USAGE, "'*.qkv' fits no linear layer")
        self.refused(self.adapted("adapter.from=base_hub"), DATA, "has no adapter_config.json")
        self.adapter("dora", use_dora=True)
        self.refused(self.adapted("adapter.from=dora"), DATA, "use_dora has no counterpart")
        self.adapter("alphas", alpha_pattern={"q_proj": 5})
        complete = ('adapter.match=["q_proj","v_proj","o_proj","gate_proj","down_proj"]', f"adapter.rank={RANK}",
                    f"adapter.alpha={ALPHA}", "adapter.dropout=0")
        self.refused(self.adapted("adapter.from=alphas", *complete), DATA, "alpha_pattern has no counterpart")
        (self.folder / "other/adapter_model.safetensors").unlink()
        self.refused(self.adapted("adapter.from=other", "adapter.rank=4"), DATA, "[adapter] from: there is no 'other/adapter_model.safetensors'")
        # The base is not what it was.
        self.succeeds(self.adapted("checkpoint.every_steps=1", "train.steps=1"))
        self.refused(self.train(*SIZES, *STEPS, "name=next", "model.from=runs/small"), DATA, "model.safetensors' has adapters alone")
        self.refused(self.troika("checkpoint", "export", "runs/base", "out", "--merge"), USAGE, "has no adapters")
        self.refused(self.troika("checkpoint", "export", "runs/small", "out.pt2"), USAGE, "the run has adapters, which are no program")
        base = load_file(self.folder / "runs/base/model.safetensors")
        base["model.norm.weight"][0] += 1
        save_file(base, self.folder / "runs/base/model.safetensors")
        self.refused(self.adapted("checkpoint.every_steps=1", flags=("--resume",)), DATA,
                     "is not the one that the run's adapters were trained on")
        self.refused(self.troika("evaluate", "runs/small"), DATA, "is not the one that the run's adapters were trained on")


class Renamed(torch.nn.Module):
    """A model of peft's whose parameters have the names of troika."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch)

    def named_parameters(self, *arguments, **more):
        for name, each in self.model.named_parameters(*arguments, **more):
            yield name_here(name), each

    def state_dict(self, *arguments, **more):
        return {name_here(name): each for name, each in self.model.state_dict(*arguments, **more).items()}


class Lists(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)) for _ in range(2)]
        self.blocks = torch.nn.ModuleList(layers)
        self.head = torch.nn.Linear(8, 5)
        layers[0][0].weight.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x) + self.head.weight.sum()}


class AdaptedPrograms(ExportedRuns):
    def test_bert(self):
        network, name = NETWORKS["bert-classes"], "bert-classes"
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["query", "value", "dense"])
        model = peft.get_peft_model(module_of(name), config, autocast_adapter_dtype=False)
        torch.manual_seed(6)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.normal_(std=0.2)
        model.save_pretrained(self.folder / "adapter")
        (self.folder / "recipe.toml").write_text(RECIPE.format(path=file_of(name), keys=network.recipe))
        for ranks, sets in ((1, ()), (2, ("parallel.zero_stage=3",))):
            with self.subTest(ranks=ranks):
                self.trained(ranks, "adapter.kind=lora", "adapter.from=adapter", *sets)
                expected = self.follow(Renamed(model), ranks, network.call)
                saved = load_file(self.run_folder / "model.safetensors")
                pairs = {key: value for key, value in expected.items() if ".lora_" in key}
                self.assertEqual({key for key in saved if ".lora_" in key}, set(pairs))
                self.assertFalse((self.run_folder / "model.pt2").exists())
                for key, value in pairs.items():
                    torch.testing.assert_close(saved[key].double(), value.double(), rtol=1e-10, atol=1e-10, msg=key)
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "out"))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "merged.pt2", "--merge"))
        read = peft.PeftModel.from_pretrained(module_of(name), self.folder / "out", autocast_adapter_dtype=False).eval()
        batch = network.inputs(4)
        with torch.no_grad():
            expected = read(**batch).logits
            found = torch.export.load(self.folder / "merged.pt2").module()(**batch)["logits"]
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-5)

    def test_lists_with_frozen_and_shared_weights(self):
        """Last parts of names are those of other modules, too; one weight is frozen; another is no layer's alone."""
        network = Lists()
        program = torch.export.export(network, (), {"x": torch.randn(4, 8)}, dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}, strict=False)
        torch.export.save(program, self.folder / "net.pt2")
        recipe = RECIPE.format(path=self.folder / "net.pt2", keys="targets = { y = { classes = 5 } }")
        (self.folder / "recipe.toml").write_text(recipe)
        self.trained(1, "adapter.kind=lora", "adapter.alpha=64")
        self.assertIn("blocks.0.0.weight", load_file(self.run_folder / "model.safetensors"))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "out"))
        self.succeeds(self.troika("checkpoint", "export", "runs/small", "merged.pt2", "--merge"))
        config = json.loads((self.folder / "out/adapter_config.json").read_text())
        self.assertEqual(config["target_modules"], ["blocks.0.0", "blocks.1.0", "blocks.0.2", "blocks.1.2"])
        x = torch.randn(4, 8)
        with torch.no_grad():
            before = network(x)["logits"]
            read = peft.PeftModel.from_pretrained(network, self.folder / "out", autocast_adapter_dtype=False).eval()
            expected = read(x=x)["logits"]
            found = torch.export.load(self.folder / "merged.pt2").module()(x=x)["logits"]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        self.assertGreater(float((before - expected).abs().max()), 1e-3)
        done = self.troika("train", "recipe.toml", "--overwrite", "--set", "adapter.kind=lora", "--set", 'adapter.match=["head"]')
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("[adapter] match: 'head' names 'head', whose weight something else in the model has, too", done.err)


def name_here(name):
    return name.removeprefix("base_model.model.").replace(".default.", ".")

