"""The package `tokenizers` on texts of this machine: tokenize_texts.py write|read FOLDER MEGABYTES

`write` makes FOLDER/texts of the headers in /usr/include, again and again, and trains FOLDER/tokenizer.json on them.
`read` encodes them, and prints the seconds of that as JSON.
"""

import glob
import json
import pathlib
import sys
import time

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write(folder, megabytes):
    texts = [pathlib.Path(path).read_text(errors="replace") for path in sorted(glob.glob("/usr/include/**/*.h", recursive=True))]
    (folder / "texts").mkdir(parents=True)
    written = count = 0
    while written < megabytes * 1_000_000:
        text = texts[count % len(texts)]
        (folder / "texts" / f"{count:06}.txt").write_text(text)
        written, count = written + len(text.encode()), count + 1
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(texts[:400], trainers.BpeTrainer(
        vocab_size=16_000, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


def read(folder):
    texts = [path.read_text() for path in sorted((folder / "texts").iterdir()) if path.stat().st_size]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    began = time.perf_counter()
    encoded = tokenizer.encode_batch_fast(texts)
    print(json.dumps({"seconds": time.perf_counter() - began, "ids": sum(len(each.ids) for each in encoded)}))


command, where, size = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
write(where, size) if command == "write" else read(where)
