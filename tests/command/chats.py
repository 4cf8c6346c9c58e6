"""Conversations, tokenizers and templates for tests, and what `transformers` makes of them."""

import glob
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTROLS = {
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama3": ["<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]}
ANSWER = "{% if m.role == 'assistant' %}{% generation %}"
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}" + ANSWER +
              "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
    "llama3": "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}" + ANSWER +
              "{{ m.content | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}",
    "mistral": "{{ '<s>' }}{% set rest = messages %}{% set system = '' %}{% if messages[0].role == 'system' %}"
               "{% set system = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}{% endif %}{% for m in rest %}" + ANSWER +
               "{{ ' ' + m.content | trim + '</s>' }}{% endgeneration %}{% else %}"
               "{{ '[INST] ' + (system if loop.first else '') + m.content + '[/INST]' }}{% endif %}{% endfor %}"}
ODD = ["", " ", "\n\n", "  spaces \u00a0", "na\u00efve \u65e5\u672c\u8a9e\u3002", "\n\n\nlines\n\n", "x", "'s it", "12345 a", "\U0001f600"]


def corpus():
    return [pathlib.Path(path).read_text(errors="replace")[:8_000] for path in sorted(glob.glob("/usr/include/*.h"))[:30]] + ODD * 9


def byte_level(template, pre_tokenizer, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=700, special_tokens=CONTROLS[template], show_progress=False,
                                                                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def gpt2(template):
    return byte_level(template, pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3(template):
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    return byte_level(template, pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                      ignore_merges=True)


def metaspace(template):
    """With a space before a text, and control tokens that take the white space behind them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    lines = [line for text in corpus() for line in text.splitlines()]
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False))
    parts = json.loads(tokenizer.to_str())  # bytes are of the vocabulary, and not special
    parts["added_tokens"] = [each for each in parts["added_tokens"] if not each["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.add_special_tokens([AddedToken(each, rstrip=each == "<|im_end|>", normalized=False) for each in CONTROLS[template] if each != "<unk>"])
    return tokenizer


def prepending(template):
    """As Llama 2: a space before each text between control tokens, by its normalizer."""
    parts = json.loads(metaspace(template).to_str())
    parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def draw(seed, count):
    """Conversations of several turns, some with a system message."""
    chance = random.Random(seed)
    words = " ".join(corpus()).split(" ")

    def content():
        return chance.choice(ODD) if chance.random() < 0.3 else " ".join(chance.choice(words) for _ in range(chance.randint(1, 12)))

    def one():
        messages = [{"role": "system", "content": content()}] if chance.random() < 0.3 else []
        for _ in range(chance.randint(1, 3)):
            messages += [{"role": "user", "content": content()}, {"role": "assistant", "content": content()}]
        return messages if chance.random() < 0.8 else messages + [{"role": "user", "content": content()}]
    return [one() for _ in range(count)]


def judged(tokenizer, template, messages):
    """Ids and mask by transformers."""
    hub = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    made = hub.apply_chat_template(messages, chat_template=TEMPLATES[template], return_dict=True, return_assistant_tokens_mask=True)
    return made["input_ids"], made["assistant_masks"]
