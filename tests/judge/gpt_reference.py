#!/usr/bin/env python3
"""Judges a GPT run by a plain fp64 PyTorch implementation that shares nothing with troika.

Given the parameters and the batch of a dump, recomputes the mean loss per valid token and, by autograd, every
gradient, and compares them with what the run wrote. The defaults are the bounds for fp64 runs.
"""
import math
import sys

import torch
import torch.nn.functional as F

import dump as dumps


def norm(p, name, x, model):
    weight = p[f"{name}.weight"]
    if model["norm"] == "rmsnorm":
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + model["norm_eps"]) * weight
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + model["norm_eps"])
    return scaled * weight + p[f"{name}.bias"] if model["bias"] else scaled * weight


def linear(p, name, x, has_bias):
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if has_bias else y


def positions_of(documents):
    """Counts from 0 in each document: [samples, seq_len]."""
    index = torch.arange(documents.shape[1]).expand_as(documents)
    is_start = torch.ones_like(documents, dtype=torch.bool)
    is_start[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(is_start, index, 0).cummax(dim=1).values


def frequencies_of(model, half):
    """Angles between neighbouring positions; scaled as in Llama 3.1, wave by wave."""
    found = [model["rope_theta"] ** (-i / half) for i in range(half)]
    scaling, factor = model.get("rope_scaling", "none"), model.get("rope_factor", 1.0)
    if scaling == "linear":
        return [frequency / factor for frequency in found]
    if scaling == "none":
        return found
    low, high, length = (model[f"rope_{key}"] for key in ("low_freq_factor", "high_freq_factor", "original_len"))
    scaled = []
    for frequency in found:
        turns = length * frequency / (2 * math.pi)
        smooth = (turns - low) / (high - low)
        if turns > high:
            scaled.append(frequency)
        elif turns < low:
            scaled.append(frequency / factor)
        else:
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return scaled


def rotate(x, positions, model):
    """Rotary embedding of [samples, heads, seq_len, head_dim]; element i turns with element i + head_dim / 2."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None].to(x.dtype) * torch.tensor(frequencies_of(model, half), dtype=x.dtype)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(p, name, x, model, documents, positions):
    samples, length, _ = x.shape
    heads, kv_heads, head_dim = model["heads"], model["kv_heads"], model["head_dim"]

    def split(which, count):
        y = linear(p, f"{name}.{which}_proj", x, model["bias"] or model.get("qkv_bias", False))
        y = y.view(samples, length, count, head_dim).transpose(1, 2)
        is_normalised = model.get("qk_norm", False) and which != "v"
        return norm(p, f"{name}.{which}_norm", y, model) if is_normalised else y

    q, k, v = split("q", heads), split("k", kv_heads), split("v", kv_heads)
    if model["position"] == "rope":
        q, k = (rotate(y, positions, model) for y in (q, k))
    k, v = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v))
    scores = q @ k.transpose(-1, -2) / head_dim**0.5
    allowed = torch.ones(length, length, dtype=torch.bool).tril() & (documents[:, :, None] == documents[:, None, :])
    weights = scores.masked_fill(~allowed[:, None], float("-inf")).softmax(-1)
    y = (weights @ v).transpose(1, 2).reshape(samples, length, heads * head_dim)
    return linear(p, f"{name}.o_proj", y, model["bias"])


def mlp(p, name, x, model):
    up = linear(p, f"{name}.up_proj", x, model["bias"])
    if model["activation"] == "swiglu":
        hidden = F.silu(linear(p, f"{name}.gate_proj", x, model["bias"])) * up
    else:
        hidden = F.gelu(up, approximate="tanh" if model["activation"] == "gelu_tanh" else "none")
    return linear(p, f"{name}.down_proj", hidden, model["bias"])


def logits_of(p, model, tokens, documents):
    """[samples, seq_len, vocab_size]. Positions see earlier ones of the same document."""
    positions = positions_of(documents)
    x = p["model.embed_tokens.weight"][tokens]
    if model["position"] == "learned":
        x = x + p["model.embed_positions.weight"][positions]
    for i in range(model["layers"]):
        layer = f"model.layers.{i}"
        x = x + attention(
            p, f"{layer}.self_attn", norm(p, f"{layer}.input_layernorm", x, model), model, documents, positions
        )
        x = x + mlp(p, f"{layer}.mlp", norm(p, f"{layer}.post_attention_layernorm", x, model), model)
    x = norm(p, "model.norm", x, model)
    head = "model.embed_tokens.weight" if model["tied_embeddings"] else "lm_head.weight"
    return x @ p[head].T


def loss_and_gradients(model, parameters, batch, samples_at_once=8):
    """Mean loss per valid token, and the gradient of every parameter by name."""
    p = {name: value.detach().double().requires_grad_() for name, value in parameters.items()}
    tokens, targets = batch["input_ids"], batch["targets"]
    documents = batch.get("document_ids", torch.zeros_like(tokens))
    valid = (targets != dumps.IGNORED_TARGET).sum()
    total = 0.0
    for part in torch.arange(len(tokens)).split(samples_at_once):
        logits = logits_of(p, model, tokens[part], documents[part])
        losses = F.cross_entropy(
            logits.flatten(0, 1), targets[part].flatten(), ignore_index=dumps.IGNORED_TARGET, reduction="sum"
        )
        loss = losses / valid
        loss.backward()
        total += loss.item()
    unused = sorted(name for name, value in p.items() if value.grad is None)
    if unused:
        raise dumps.CannotJudge(f"the model of the recipe has no {', '.join(unused)}")
    return total, {name: value.grad for name, value in p.items()}


def main():
    arguments = dumps.parse_gradient_judge(__doc__, tolerance=1e-12, floor=1e-14)

    def judge(dump):
        loss, gradients = loss_and_gradients(dump.model, dump.parameters, dump.batch)
        rows = dumps.compare_gradients(dump, gradients, arguments.tolerance, arguments.floor)
        return [dumps.compare_loss(dump, loss, arguments.tolerance), *rows]

    return dumps.judge_run(arguments.run, arguments.step, "fp64 reference", judge)


if __name__ == "__main__":
    sys.exit(main())
