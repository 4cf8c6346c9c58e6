"""GPT-2 of a recipe in PyTorch: query, key and value in one product, fused AdamW, scaled_dot_product_attention.

gpt2.py ../recipes/gpt2-124m.toml --device cuda --steps 60 [--compile]
gpt2.py RECIPE --device cuda --check FOLDER     compares its gradients with those that troika has dumped
"""

import argparse
import json
import tomllib

import torch
from torch import nn
from torch.nn import functional as F
from training import count, train

NORM_EPS = 1e-5


class Block(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        dim = recipe["dim"]
        self.heads = recipe["heads"]
        self.input_layernorm = nn.LayerNorm(dim, eps=NORM_EPS)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o_proj = nn.Linear(dim, dim)
        self.post_attention_layernorm = nn.LayerNorm(dim, eps=NORM_EPS)
        self.up_proj = nn.Linear(dim, recipe["ffn_dim"])
        self.down_proj = nn.Linear(recipe["ffn_dim"], dim)

    def forward(self, hidden):
        qkv = self.qkv(self.input_layernorm(hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (one.transpose(1, 2) for one in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.o_proj(attended.transpose(1, 2).flatten(2))
        inner = F.gelu(self.up_proj(self.post_attention_layernorm(hidden)), approximate="tanh")
        return hidden + self.down_proj(inner)


class Gpt(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.embed_tokens = nn.Embedding(recipe["vocab_size"], recipe["dim"])
        self.embed_positions = nn.Embedding(recipe["seq_len"], recipe["dim"])
        self.layers = nn.ModuleList(Block(recipe) for _ in range(recipe["layers"]))
        self.norm = nn.LayerNorm(recipe["dim"], eps=NORM_EPS)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        hidden = self.embed_tokens(ids) + self.embed_positions.weight[: ids.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return F.linear(self.norm(hidden), self.embed_tokens.weight)


def loss_of(model, ids, targets):
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def as_here(dumped):
    """troika's tensors under this model's names."""
    found = {}
    for name, tensor in dumped.items():
        name = name.removeprefix("model.").replace("mlp.", "").replace("self_attn.", "")
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            parts = [dumped[f"model.{name.replace('q_proj', f'self_attn.{one}_proj')}"] for one in "qkv"]
            name, tensor = name.replace("q_proj", "qkv"), torch.cat(parts)
        found[name] = tensor
    return found


def check(model, folder, device):
    """The largest difference of a gradient, in parts of its largest element, on the batch of troika's dump."""
    from safetensors.torch import load_file

    model.load_state_dict(as_here(load_file(f"{folder}/parameters.safetensors")), strict=True)
    batch = load_file(f"{folder}/batch.safetensors")
    loss_of(model, batch["input_ids"].to(device), batch["targets"].to(device)).backward()
    theirs = as_here(load_file(f"{folder}/gradients.safetensors"))
    largest = 0.0
    for name, parameter in model.named_parameters():
        scale = max(parameter.grad.abs().max().item(), 1e-6)  # the bias of keys has none but rounding
        largest = max(largest, (parameter.grad.cpu() - theirs[name]).abs().max().item() / scale)
    return {"parameters": count(model), "largest_gradient_error": largest}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--device", required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--check", metavar="FOLDER")
    options = parser.parse_args()
    with open(options.recipe, "rb") as file:
        recipe = tomllib.load(file)
    torch.manual_seed(1337)
    model = Gpt(recipe["model"]).to(options.device)
    if options.check:
        print(json.dumps(check(model, options.check, options.device)))
        return
    rules, size = recipe["optimizer"], (recipe["train"]["global_batch_size"], recipe["model"]["seq_len"] + 1)
    tokens = torch.randint(recipe["model"]["vocab_size"], size, device=options.device)
    decayed = [one for one in model.parameters() if one.dim() == 2]
    others = [one for one in model.parameters() if one.dim() == 1]
    groups = [{"params": decayed, "weight_decay": rules["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rules["lr"], betas=rules["betas"], eps=1e-8, fused=True)
    train(model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), loss_of, optimizer, options.steps,
          options.compile, recipe["train"]["grad_clip"])


if __name__ == "__main__":
    main()
