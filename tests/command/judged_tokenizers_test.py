"""Tokenizers of Hugging Face's libraries: `tokenizers` trains some of each kind on real text, and judges ids and text.

Run with pytest, in an environment with tokenizers.
"""

import glob
import json
import os
import pathlib
import random
import subprocess
import unittest

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from command import CommandTest

DATA = 3
LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SIGN = "\u2581"
WORDS = ["the quick brown fox", "na\u00efve caf\u00e9 \u00e0 la carte", "\u00dcber stra\u00dfe", "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002", "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u044f\u0437\u044b\u043a",
         "\u0639\u0631\u0628\u064a", "1234567 89 3.14", "it's they'LL we'd", "  two  spaces\n\n\nlines \t tabs  ", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji",
         "e\u0301 combining \u1e9b\u0323", "don't-stop_me(now)!?", "\u00a0nbsp\u2003em", "\ufb01 ligature \u2460", "A\u0130\u0131\u03a3\u03c2", "x" * 150, "\u0915\u094d\u0937\u093f \u0939\u093f\u0928\u094d\u0926\u0940", "\u5b57" * 5 + "a\u5b57", "<0x41> " + SIGN + "x", ""]


def corpus():
    texts = []
    for path in sorted(glob.glob("/usr/include/*.h"))[:60]:
        texts.append(pathlib.Path(path).read_text(errors="replace")[:20_000])
    return texts + WORDS * 20


def odd_texts():
    draw = random.Random(1)
    alphabet = "".join(WORDS) + "  \n\t'.,!?" + "".join(chr(c) for c in range(33, 127))
    return ["".join(draw.choice(alphabet) for _ in range(draw.randint(1, 60))) for _ in range(150)]


def trained(model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None):
    tokenizer = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(corpus(), trainer)
    if post_processor is not None:
        tokenizer.post_processor = post_processor(tokenizer)
    return tokenizer


def byte_level(pre_tokenizer, normalizer=None, post_processor=None, **options):
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    return trained(models.BPE(**options), trainer, normalizer, pre_tokenizer, decoders.ByteLevel(), post_processor)


def framed(begin, end):
    def made(tokenizer):
        names = [(name, tokenizer.token_to_id(name)) for name in {begin, end}]
        return processors.TemplateProcessing(single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B {end}", special_tokens=names)
    return made


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def gpt2_with_space():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                      post_processor=framed("<|endoftext|>", "<|endoftext|>"), ignore_merges=True)


def qwen2():
    tokenizer = byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA_3.replace("{1,3}", "")), "isolated"),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), normalizers.NFC())
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("two  spaces", lstrip=True, normalized=False), AddedToken("fox", single_word=True, normalized=True)])
    return tokenizer


def llama2():
    """One word a text: merges alone, bytes for what is not in the vocabulary."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special[:3], show_progress=False, limit_alphabet=90)
    tokenizer = trained(models.BPE(unk_token="<unk>"), trainer, None, pre_tokenizers.Metaspace(prepend_scheme="first"))
    parts = json.loads(tokenizer.to_str())
    vocabulary = parts["model"]["vocab"]
    for byte in special[3:]:
        vocabulary.setdefault(byte, len(vocabulary))
    parts["model"].update(byte_fallback=True, fuse_unk=True)
    parts["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SIGN), normalizers.Replace(" ", SIGN)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SIGN, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def bert(lowercase=True, **options):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, normalizers.BertNormalizer(lowercase=lowercase, **options),
                   pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), framed("[CLS]", "[SEP]"))


def unigram():
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>", "</s>", "<pad>"], unk_token="<unk>", show_progress=False)
    return trained(models.Unigram(), trainer, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.Metaspace(),
                   decoders.Metaspace())


def mixed():
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["[UNK]", "[EOS]"], end_of_word_suffix="</w>", show_progress=False)
    return trained(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainer,
                   normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()]),
                   pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]),
                   decoders.BPEDecoder())


def words():
    trainer = trainers.WordLevelTrainer(vocab_size=500, special_tokens=["[UNK]", "[EOS]"], show_progress=False)
    return trained(models.WordLevel(unk_token="[UNK]"), trainer, None, pre_tokenizers.WhitespaceSplit())


KINDS = [gpt2, gpt2_with_space, llama3, qwen2, llama2, bert, lambda: bert(False, strip_accents=True), unigram, mixed, words]


class JudgedTokenizers(CommandTest):
    def made(self, path, texts):
        done = subprocess.run([os.environ["TOKENIZER_TOOL"], path], input=json.dumps(texts), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_ids_and_text_are_theirs(self):
        texts = WORDS + odd_texts() + corpus()[:5]
        for make in KINDS:
            with self.subTest(kind=getattr(make, "__name__", "cased")):
                tokenizer = make()
                tokenizer.save(str(self.folder / "tokenizer.json"))
                texts = texts + ["before<|endoftext|>behind [SEP] two  spaces <|im_end|>  fox foxes"]
                found = self.made(self.folder / "tokenizer.json", texts)
                self.assertEqual(found["vocab_size"], tokenizer.get_vocab_size())
                for text, each in zip(texts, found["texts"]):
                    plain = tokenizer.encode(text, add_special_tokens=False)
                    self.assertEqual(each["ids"], plain.ids, repr(text))
                    self.assertEqual(each["framed"], tokenizer.encode(text).ids, repr(text))
                    self.assertEqual(each["text"], tokenizer.decode(plain.ids), repr(text))

    def test_the_configuration_beside_it_names_the_end(self):
        tokenizer = qwen2()
        tokenizer.save(str(self.folder / "tokenizer.json"))
        self.assertEqual(self.made(self.folder, ["a"])["separator"], tokenizer.token_to_id("<|endoftext|>"))
        (self.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|im_start|>"}))
        found = self.made(self.folder, ["a"])
        self.assertEqual((found["separator"], found["filler"]), (tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|im_start|>")))

    def test_training_on_text_and_on_shards(self):
        (self.folder / "hub").mkdir()
        tokenizer = gpt2()
        tokenizer.save(str(self.folder / "hub" / "tokenizer.json"))
        vocabulary = f"model.vocab_size={tokenizer.get_vocab_size()}"
        self.succeeds(self.train(vocabulary, "data.tokenizer=hub"))
        losses = self.losses()
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt", "--tokenizer", "hub"))
        self.assertEqual((self.folder / "corpus" / "tokenizer.json").read_bytes(), (self.folder / "hub" / "tokenizer.json").read_bytes())
        shards = ("data.kind=tokens", 'data.paths=["corpus/*.tokens"]')
        self.succeeds(self.train(vocabulary, *shards, "data.tokenizer=corpus/tokenizer.json", flags=["--overwrite"]))
        self.assertEqual(self.losses(), losses)
        self.succeeds(self.troika("generate", "runs/small", "--prompt", "int main", "--tokens", 5))
        done = self.train(vocabulary, *shards, flags=["--overwrite"])
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn('write tokenizer = "corpus/tokenizer.json"', done.err)

    def test_bad_files_are_named(self):
        whole = json.loads(gpt2().to_str())
        for change, *needles in (({"model": {"type": "Magic"}}, 'its model is of type "Magic"'),
                                 ({"pre_tokenizer": {"type": "UnicodeScripts"}}, '"UnicodeScripts", which troika does not have'),
                                 ({"normalizer": {"type": "Precompiled"}}, '"Precompiled"'),
                                 ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}}, "the expression (")):
            with self.subTest(change=change):
                (self.folder / "tokenizer.json").write_text(json.dumps({**whole, **change}))
                done = self.train("data.tokenizer=tokenizer.json", "model.vocab_size=1200", flags=["--overwrite"])
                self.assertEqual(done.status, DATA, str(done))
                for needle in needles:
                    self.assertIn(needle, done.err)
        (self.folder / "tokenizer.json").write_text('{"model": ')
        done = self.train("data.tokenizer=tokenizer.json", "model.vocab_size=1200", flags=["--overwrite"])
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("the tokenizer 'tokenizer.json' cannot be used", done.err)


if __name__ == "__main__":
    unittest.main()
