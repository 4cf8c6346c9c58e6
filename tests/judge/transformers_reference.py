#!/usr/bin/env python3
"""Judges a GPT run by the `transformers` package: its Llama, Qwen2, Qwen3 or GPT-2, with the dump's parameters.

Llama has rmsnorm, rope, swiglu and no biases, Qwen2 those of q, k and v, Qwen3 norms of q and k; GPT-2 has layernorm, learned positions, a GELU and biases. All are
built from a configuration; nothing is downloaded. They compute norms and angles in fp32 even where the weights are
fp64, hence the wider bounds.
"""
import sys

import torch
import torch.nn.functional as F

import dump as dumps

LLAMA = {"norm": "rmsnorm", "position": "rope", "activation": "swiglu", "bias": False}
GPT2 = {"norm": "layernorm", "position": "learned", "activation": "gelu_tanh", "bias": True}


def rope_of(model):
    rope = {"rope_type": "default", "rope_theta": model["rope_theta"]}
    scaling = model.get("rope_scaling", "none")
    if scaling != "none":
        rope |= {"rope_type": scaling, "factor": model["rope_factor"]}
    if scaling == "llama3":
        rope |= {
            "low_freq_factor": model["rope_low_freq_factor"],
            "high_freq_factor": model["rope_high_freq_factor"],
            "original_max_position_embeddings": model["rope_original_len"],
        }
    return rope


def llama(model):
    import transformers

    qkv_bias, qk_norm = model.get("qkv_bias", False), model.get("qk_norm", False)
    if qkv_bias and qk_norm:
        raise dumps.CannotJudge("no model of the package has qkv_bias and qk_norm")
    family = "Qwen3" if qk_norm else "Qwen2" if qkv_bias else "Llama"
    return getattr(transformers, f"{family}ForCausalLM")(
        getattr(transformers, f"{family}Config")(
            vocab_size=model["vocab_size"],
            hidden_size=model["dim"],
            intermediate_size=model["ffn_dim"],
            num_hidden_layers=model["layers"],
            num_attention_heads=model["heads"],
            num_key_value_heads=model["kv_heads"],
            head_dim=model["head_dim"],
            max_position_embeddings=model["seq_len"],
            rms_norm_eps=model["norm_eps"],
            rope_parameters=rope_of(model),
            tie_word_embeddings=model["tied_embeddings"],
            attention_bias=False,
            mlp_bias=False,
            attn_implementation="eager",
        )
    )


def gpt2(model):
    from transformers import GPT2Config, GPT2LMHeadModel

    if model["kv_heads"] != model["heads"] or model["head_dim"] * model["heads"] != model["dim"]:
        raise dumps.CannotJudge("GPT-2 has kv_heads = heads and head_dim = dim / heads")
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model["vocab_size"],
            n_embd=model["dim"],
            n_inner=model["ffn_dim"],
            n_layer=model["layers"],
            n_head=model["heads"],
            n_positions=model["seq_len"],
            activation_function="gelu_new",
            layer_norm_epsilon=model["norm_eps"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=model["tied_embeddings"],
            attn_implementation="eager",
        )
    )


def to_gpt2(tensors, model):
    """Our names and layouts -> GPT-2's, which joins q, k and v, and stores [in, out]."""
    renamed = {
        "transformer.wte.weight": tensors["model.embed_tokens.weight"],
        "transformer.wpe.weight": tensors["model.embed_positions.weight"],
    }
    if not model["tied_embeddings"]:
        renamed["lm_head.weight"] = tensors["lm_head.weight"]
    for kind in ("weight", "bias"):
        renamed[f"transformer.ln_f.{kind}"] = tensors[f"model.norm.{kind}"]
        for i in range(model["layers"]):
            ours, theirs = f"model.layers.{i}", f"transformer.h.{i}"

            def turned(name):
                return tensors[f"{ours}.{name}.{kind}"].T if kind == "weight" else tensors[f"{ours}.{name}.{kind}"]

            renamed[f"{theirs}.ln_1.{kind}"] = tensors[f"{ours}.input_layernorm.{kind}"]
            renamed[f"{theirs}.ln_2.{kind}"] = tensors[f"{ours}.post_attention_layernorm.{kind}"]
            renamed[f"{theirs}.attn.c_attn.{kind}"] = torch.cat([turned(f"self_attn.{x}_proj") for x in "qkv"], dim=-1)
            renamed[f"{theirs}.attn.c_proj.{kind}"] = turned("self_attn.o_proj")
            renamed[f"{theirs}.mlp.c_fc.{kind}"] = turned("mlp.up_proj")
            renamed[f"{theirs}.mlp.c_proj.{kind}"] = turned("mlp.down_proj")
    return renamed


def build(model):
    """The package's model and the function that renames our tensors to its own."""
    choices = {key: model[key] for key in LLAMA}
    if choices == LLAMA:
        return llama(model), lambda tensors, _: dict(tensors)
    if choices == GPT2:
        return gpt2(model), to_gpt2
    raise dumps.CannotJudge(f"neither Llama's choices ({LLAMA}) nor GPT-2's ({GPT2}): {choices}")


def load(judge, parameters):
    """Copies by name; a tied head has no name of its own in the dump."""
    missing, unexpected = judge.load_state_dict(parameters, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise dumps.CannotJudge(f"parameters missing {missing}, unexpected {unexpected}")
    judge.tie_weights()


def judge_dump(dump, tolerance, floor):
    if "document_ids" in dump.batch:
        raise dumps.CannotJudge("packed documents that do not attend to each other are unknown to this judge")
    judge, rename = build(dump.model)
    judge = judge.double().eval()
    load(judge, {name: value.double() for name, value in rename(dump.parameters, dump.model).items()})
    logits = judge(dump.batch["input_ids"], use_cache=False).logits.double()
    targets = dump.batch["targets"].flatten()
    loss = F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=dumps.IGNORED_TARGET)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in judge.named_parameters()}
    dump.gradients = rename(dump.gradients, dump.model)
    return [
        dumps.compare_loss(dump, loss.item(), tolerance),
        *dumps.compare_gradients(dump, gradients, tolerance, floor),
    ]


def main():
    arguments = dumps.parse_gradient_judge(__doc__, tolerance=1e-5, floor=1e-7)
    return dumps.judge_run(
        arguments.run,
        arguments.step,
        "transformers",
        lambda dump: judge_dump(dump, arguments.tolerance, arguments.floor),
    )


if __name__ == "__main__":
    sys.exit(main())
