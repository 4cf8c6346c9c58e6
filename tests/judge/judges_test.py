"""The judges themselves, on synthetic dumps: that they agree with each other, and that they catch an error.

Run with pytest.
"""
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpt_reference
import transformers_reference
import update_reference

LLAMA = dict(norm="rmsnorm", position="rope", activation="swiglu", bias=False, kv_heads=2, head_dim=6)
LLAMA3 = dict(
    rope_scaling="llama3", rope_factor=4.0, rope_low_freq_factor=0.5, rope_high_freq_factor=2.0, rope_original_len=20
)
QWEN2 = dict(**LLAMA, qkv_bias=True, rope_scaling="linear", rope_factor=3.0)
QWEN3 = dict(**LLAMA, qk_norm=True, **LLAMA3)
GPT2 = dict(norm="layernorm", position="learned", activation="gelu_tanh", bias=True, kv_heads=4, head_dim=4)


def model_of(**choices):
    sizes = dict(kind="gpt", layers=2, dim=16, heads=4, ffn_dim=24, vocab_size=23, seq_len=11, rope_theta=100.0)
    return {**sizes, **LLAMA, "norm_eps": 1e-5, "tied_embeddings": False, "dropout": 0.0, **choices}


def shapes_of(model):
    """Every parameter of the recipe's GPT with its shape."""
    dim, head_dim, ffn = model["dim"], model["head_dim"], model["ffn_dim"]
    shapes = {"model.embed_tokens.weight": (model["vocab_size"], dim)}
    if model["position"] == "learned":
        shapes["model.embed_positions.weight"] = (model["seq_len"], dim)
    if not model["tied_embeddings"]:
        shapes["lm_head.weight"] = (model["vocab_size"], dim)
    norms, heads, linears = ["model.norm"], [], {}
    for i in range(model["layers"]):
        layer = f"model.layers.{i}"
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
        q, kv = model["heads"] * head_dim, model["kv_heads"] * head_dim
        for name, rows, columns in (("q", q, dim), ("k", kv, dim), ("v", kv, dim), ("o", dim, q)):
            linears[f"{layer}.self_attn.{name}_proj"] = (rows, columns)
        for name in ("gate", "up") if model["activation"] == "swiglu" else ("up",):
            linears[f"{layer}.mlp.{name}_proj"] = (ffn, dim)
        linears[f"{layer}.mlp.down_proj"] = (dim, ffn)
        if model.get("qk_norm", False):
            heads += [f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm"]
    for name, shape in linears.items():
        shapes[f"{name}.weight"] = shape
        is_qkv = name.endswith(("q_proj", "k_proj", "v_proj"))
        if model["bias"] or (is_qkv and model.get("qkv_bias", False)):
            shapes[f"{name}.bias"] = shape[:1]
    for name in heads:
        shapes[f"{name}.weight"] = (head_dim,)
    for name in norms:
        shapes[f"{name}.weight"] = (dim,)
        if model["bias"] and model["norm"] == "layernorm":
            shapes[f"{name}.bias"] = (dim,)
    return shapes


def batch_of(model, isolated=False):
    tokens = torch.randint(model["vocab_size"], (3, model["seq_len"] + 1))
    targets = tokens[:, 1:].clone()
    targets[1, 4:] = -100  # a short document, padded
    batch = {"input_ids": tokens[:, :-1].contiguous(), "targets": targets, "sample_ids": torch.arange(3)}
    if isolated:
        batch["document_ids"] = torch.tensor([[0] * 4 + [1] * 5 + [2] * 2] * 3)
    return batch


def write_run(run, model, batch):
    """A run folder as troika would leave it, with the numbers of the plain reference."""
    torch.manual_seed(0)
    parameters = {name: 0.3 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes_of(model).items()}
    loss, gradients = gpt_reference.loss_and_gradients(model, parameters, batch)
    folder = run / "dump" / "step-3"
    folder.mkdir(parents=True)
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    (run / "recipe.toml").write_text(f'name = "synthetic"\n[model]\n{table}\n')
    (run / "metrics.jsonl").write_text(json.dumps({"step": 3, "loss": loss}) + "\n")
    for name, tensors in (("batch", batch), ("parameters", parameters), ("gradients", gradients)):
        save_file({key: value.detach() for key, value in tensors.items()}, folder / f"{name}.safetensors")
    return gradients


def verdict(judge, run, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["judge", str(run), *arguments])
    return judge.main()


CHOICES = {
    "llama": LLAMA,
    "llama tied": {**LLAMA, "tied_embeddings": True},
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gpt2": GPT2,
    "gpt2 tied": {**GPT2, "tied_embeddings": True},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES.keys())
def test_transformers_agrees_with_the_plain_reference(choices, tmp_path, monkeypatch):
    model = model_of(**choices)
    write_run(tmp_path, model, batch_of(model))
    assert verdict(gpt_reference, tmp_path, monkeypatch) == 0
    assert verdict(transformers_reference, tmp_path, monkeypatch) == 0


@pytest.mark.parametrize("activation", ["swiglu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("position", ["rope", "learned"])
def test_gradients_are_those_of_finite_differences(activation, norm, position, tmp_path):
    model = model_of(activation=activation, norm=norm, position=position, bias=norm == "layernorm")
    batch = batch_of(model, isolated=True)
    torch.manual_seed(1)
    parameters = {name: 0.3 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes_of(model).items()}
    _, gradients = gpt_reference.loss_and_gradients(model, parameters, batch)
    directions = {name: torch.randn_like(value) for name, value in parameters.items()}
    step = 1e-6
    ahead, behind = (
        gpt_reference.loss_and_gradients(
            model, {name: value + sign * step * directions[name] for name, value in parameters.items()}, batch
        )[0]
        for sign in (1, -1)
    )
    along = sum((gradients[name] * directions[name]).sum().item() for name in gradients)
    assert along == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


def test_packed_documents_are_computed_as_if_alone():
    model = model_of()
    batch = batch_of(model, isolated=True)
    torch.manual_seed(2)
    p = {name: 0.3 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes_of(model).items()}
    packed = gpt_reference.logits_of(p, model, batch["input_ids"], batch["document_ids"])
    for begin, end in ((0, 4), (4, 9), (9, 11)):
        tokens = batch["input_ids"][:, begin:end]
        alone = gpt_reference.logits_of(p, model, tokens, torch.zeros_like(tokens))
        torch.testing.assert_close(packed[:, begin:end], alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("judge", [gpt_reference, transformers_reference])
def test_a_wrong_gradient_or_loss_is_caught(judge, tmp_path, monkeypatch):
    model = model_of()
    gradients = write_run(tmp_path, model, batch_of(model))
    name = "model.layers.1.mlp.up_proj.weight"
    wrong = {**gradients, name: gradients[name] * (1 + 1e-4)}
    path = tmp_path / "dump" / "step-3" / "gradients.safetensors"
    save_file(wrong, path)
    assert verdict(judge, tmp_path, monkeypatch) == 1
    save_file(gradients, path)
    assert verdict(judge, tmp_path, monkeypatch) == 0
    metrics = json.loads((tmp_path / "metrics.jsonl").read_text())
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**metrics, "loss": metrics["loss"] * (1 + 1e-4)}))
    assert verdict(judge, tmp_path, monkeypatch) == 1


def test_what_cannot_be_judged_is_neither_right_nor_wrong(tmp_path, monkeypatch):
    assert verdict(gpt_reference, tmp_path, monkeypatch) == 2  # no run
    model = model_of(activation="gelu")
    write_run(tmp_path, model, batch_of(model))
    assert verdict(transformers_reference, tmp_path, monkeypatch) == 2  # neither Llama nor GPT-2


def rates_of(steps, schedule, train_steps, **optimizer):
    optimizer = dict(lr=1.0, min_lr=0.1, warmup_steps=10, lr_base_batch_size=0, schedule=schedule) | optimizer
    train = {"steps": train_steps, "global_batch_size": 64}
    return [update_reference.learning_rate(optimizer, train, step) for step in steps]


def test_learning_rates_worked_out_by_hand():
    assert rates_of([1, 5, 10, 110], "constant", 110) == pytest.approx([0.1, 0.5, 1, 1])
    assert rates_of([10, 60, 110], "linear", 110) == pytest.approx([1, 0.55, 0.1])
    assert rates_of([30, 45, 90], "cosine", 90, warmup_steps=0) == pytest.approx([0.1 + 0.9 * 0.75, 0.55, 0.1])
    assert rates_of([80, 85, 100], "wsd", 100) == pytest.approx([1, 0.1 + 0.9 * 0.5, 0.1])
    scaled = dict(lr_base_batch_size=16, warmup_steps=4)
    assert rates_of([1, 2, 3, 4, 5], "constant", 9, **scaled) == pytest.approx([1, 2, 3, 4, 4])
    assert rates_of([1, 5], "constant", 9, lr_base_batch_size=128) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    "optimizer, gradient, step, plain_step",
    [
        # Adam's first direction is the gradient's sign: |w| / |u| = 5 / sqrt(2).
        ({"kind": "lamb", "betas": [0.9, 0.95], "eps": 0.0, "weight_decay": 0.0},
         [2.0, -7.0], [5 / 2**0.5, -5 / 2**0.5], [1.0, -1.0]),
        # 0.001 |w| / (|g| + 0.1 |w|) = 1 / 300, times g + 0.1 w.
        ({"kind": "lars", "momentum": 0.9, "nesterov": False, "weight_decay": 0.1},
         [0.6, 0.8], [0.003, 0.004], [0.6, 0.8]),
        ({"kind": "lion", "betas": [0.9, 0.99], "weight_decay": 0.1}, [2.0, -7.0], [1.3, -0.6], [1.0, -1.0]),
    ],
)
def test_steps_worked_out_by_hand(optimizer, gradient, step, plain_step):
    """Of a weight, and of a norm's, which neither adapts nor decays."""
    start, gradient, *steps = (torch.tensor(x, dtype=torch.float64) for x in ([3, 4], gradient, step, plain_step))
    parameters = {name: start.clone() for name in ("mlp.weight", "model.norm.weight")}
    judge = update_reference.build(optimizer, parameters)
    for value in parameters.values():
        value.grad = gradient.clone()
    for group in judge.param_groups:
        group["lr"] = 0.5
    judge.step()
    for value, step in zip(parameters.values(), steps):
        torch.testing.assert_close(value, start - 0.5 * step, rtol=1e-14, atol=0)
