"""The GPT of a recipe (pre-norm RMSNorm, rotary positions, SwiGLU) under PyTorch DDP, on one rank of torchrun's.

torchrun --nproc-per-node 2 ddp_gpt.py ../recipes/gpt-small.toml --steps 30

Names and weight layout are those of Hugging Face's Llama, hence of troika's dumps. Projections of
query, key and value are apart, as there. Eager, not compiled: torch.compile needs a C++ compiler at run time.
"""

import torch
from measure import arguments, run
from torch import nn
from torch.nn import functional as F

NORM_EPS = 1e-5
ROPE_THETA = 10000.0


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotary_table(length, width):
    rates = ROPE_THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(heads, cosine, sine):
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat([-second, first], dim=-1) * sine


class Attention(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        dim = recipe["dim"]
        self.head_dim = dim // recipe["heads"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(dim, dim) for _ in range(4))

    def forward(self, hidden, cosine, sine):
        def split(tokens):  # into the heads that there are: a rank of tensor parallelism has a part of them
            return tokens.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        query = rotate(split(self.q_proj(hidden)), cosine, sine)
        key = rotate(split(self.k_proj(hidden)), cosine, sine)
        attended = F.scaled_dot_product_attention(query, key, split(self.v_proj(hidden)), is_causal=True)
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        dim, inner = recipe["dim"], recipe["ffn_dim"]
        self.gate_proj, self.up_proj, self.down_proj = linear(dim, inner), linear(dim, inner), linear(inner, dim)

    def forward(self, hidden):
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Block(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(recipe["dim"], eps=NORM_EPS)
        self.self_attn = Attention(recipe)
        self.post_attention_layernorm = nn.RMSNorm(recipe["dim"], eps=NORM_EPS)
        self.mlp = FeedForward(recipe)

    def forward(self, hidden, cosine, sine):
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosine, sine)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Gpt(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(recipe["vocab_size"], recipe["dim"]),
            "layers": nn.ModuleDict({str(i): Block(recipe) for i in range(recipe["layers"])}),
            "norm": nn.RMSNorm(recipe["dim"], eps=NORM_EPS),
        })
        tied = recipe.get("tied_embeddings", True)
        self.lm_head = None if tied else linear(recipe["dim"], recipe["vocab_size"])
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        cosine, sine = rotary_table(recipe["seq_len"], recipe["dim"] // recipe["heads"])
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, ids, targets):
        return loss_of(self.logits(ids), targets)

    def logits(self, hidden):
        """Of token ids. A stage of a pipeline, which has a part of the modules, goes from what the stage before it
        makes to what the one after it wants."""
        if "embed_tokens" in self.model:
            hidden = self.model["embed_tokens"](hidden)
        for layer in self.model["layers"].values():
            hidden = layer(hidden, self.cosine, self.sine)
        if "norm" not in self.model:
            return hidden
        hidden = self.model["norm"](hidden)
        return self.lm_head(hidden) if self.lm_head else F.linear(hidden, self.model["embed_tokens"].weight)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_batches(recipe, samples, steps):
    """As many as there are steps, the targets one token ahead of the inputs."""
    tokens = torch.randint(recipe["vocab_size"], (steps, samples, recipe["seq_len"] + 1))
    return [(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in tokens]


def make_optimizer(parameters, recipe):
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": recipe["weight_decay"]},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    # One call into C++ for all parameters, instead of a loop over them.
    return torch.optim.AdamW(groups, lr=recipe["lr"], betas=recipe["betas"], eps=1e-8, fused=True)


if __name__ == "__main__":
    run(arguments(), Gpt, make_batches, make_optimizer)
