"""Networks of Python's in the size that they are published in, one process: full_size.py NAME --export FILE | --steps N [--precision bf16] | --check DUMP

Writes the network with torch.export, times eager PyTorch on it, or compares its gradients with those of a step that troika
has dumped. Dropout is 0, so that both sides compute the same.
"""

import argparse
import json
import resource

import torch
import transformers
from measure import count, timed_steps
from safetensors.torch import load_file
from torch.nn import functional as F

LENGTH = 128  # of texts


def texts(samples):
    ids = torch.randint(0, 30000, (samples, LENGTH))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, 30000, (samples, LENGTH))}


def images(samples):
    return {"pixel_values": torch.randn(samples, 3, 224, 224), "y": torch.randint(0, 1000, (samples,))}


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=1000))


def resnet():
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


# What makes the network, and its samples, how many a step has of them.
NETWORKS = {"bert-base": (bert, texts, 4), "gpt2": (gpt2, texts, 4), "vit-base": (vit, images, 4), "resnet-50": (resnet, images, 8)}


def loss_of(network, batch):
    given = {name: each for name, each in batch.items() if name != "y"}
    outputs = network(**given)
    return F.cross_entropy(outputs.logits, batch["y"]) if "y" in batch else outputs.loss


def export(network, batch, path):
    given = {name: each for name, each in batch.items() if name != "y"}
    samples = {name: {0: torch.export.Dim.DYNAMIC} for name in given}
    torch.export.save(torch.export.export(network.train(), (), given, dynamic_shapes=samples, strict=False), path)


def check(network, folder):
    """Ends as measure.check() does; sums of microbatches are one batch here."""
    parameters = load_file(f"{folder}/parameters.safetensors")
    network.load_state_dict(network.state_dict() | parameters)
    loss_of(network, load_file(f"{folder}/batch.safetensors")).backward()
    theirs = load_file(f"{folder}/gradients.safetensors")
    ours = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}
    largest = max(each.abs().max() for each in ours.values())
    errors = [((gradient - theirs[name]).abs().max() / largest).item() for name, gradient in ours.items()]
    return {"parameters": count(network), "largest_gradient_error": max(errors)}


def train(network, batches, precision):
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(network, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    seconds = timed_steps(step, [(batch,) for batch in batches])[0]
    return {"step_seconds": seconds, "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(NETWORKS))
    parser.add_argument("--export", metavar="FILE")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--check", metavar="FOLDER")
    found = parser.parse_args()
    make, batch_of, samples = NETWORKS[found.name]
    torch.manual_seed(1337)
    network = make().train()
    if found.export:
        export(network, batch_of(samples), found.export)
    elif found.check:
        print(json.dumps(check(network, found.check)))
    else:
        print(json.dumps(train(network, [batch_of(samples) for _ in range(found.steps)], found.precision)))


if __name__ == "__main__":
    main()
