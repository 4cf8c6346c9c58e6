#!/usr/bin/env python3
"""Writes the hand-made seeds of the token shard fuzz target into corpus/token_shard.

Checksums are wrong: the target runs every input a second time with the right one.
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus" / "token_shard"
MAX = 2**64 - 1


def header(width=1, vocab=256, documents=2, tokens=5, text=5, largest=104, separator=0, tokenizer=7,
           magic=b"TROIKATK", version=1, reserved=bytes(48), checksum=bytes(8)):
    return (magic + struct.pack("<II7Q", version, width, vocab, documents, tokens, text, largest, separator,
                                tokenizer) + reserved + checksum)


def shard(ids=b"hello", begins=(0, 2, 5), keys=(11, 12), padding=None, **fields):
    body = ids + (bytes(-len(ids) % 8) if padding is None else padding)
    return header(**fields) + body + struct.pack(f"<{len(begins) + len(keys)}Q", *begins, *keys)


SEEDS = {
    "empty": b"",
    "magic_only": b"TROIKATK",
    "magic_wrong": shard(magic=b"TROIKATX"),
    "text": b"#pragma once\n" * 20,
    "header_only": header(),
    "header_cut": header()[:100],
    "valid_u8": shard(),
    "valid_u16": shard(ids=struct.pack("<5H", 1, 2, 300, 4, 5), width=2, vocab=1000, largest=300),
    "valid_u32": shard(ids=struct.pack("<5I", 1, 2, 70000, 4, 5), width=4, vocab=100000, largest=70000),
    "valid_empty_document": shard(begins=(0, 0, 5)),
    "valid_one_document": shard(begins=(0, 5), keys=(1,), documents=1),
    "valid_eight_tokens": shard(ids=b"abcdefgh", begins=(0, 8), keys=(1,), documents=1, tokens=8),
    "version_2": shard(version=2),
    "width_0": shard(width=0),
    "width_3": shard(width=3),
    "width_huge": shard(width=2**32 - 1),
    "vocab_0": shard(vocab=0),
    "vocab_beyond_width": shard(vocab=257),
    "vocab_huge": shard(ids=struct.pack("<5I", 1, 2, 3, 4, 5), width=4, vocab=MAX),
    "largest_beyond_vocab": shard(largest=256),
    "separator_beyond_vocab": shard(separator=256),
    "documents_0": shard(documents=0),
    "documents_overflow": shard(documents=2**61),
    "documents_max": shard(documents=MAX),
    "documents_more": shard(documents=3),
    "tokens_0": shard(tokens=0),
    "tokens_overflow": shard(width=4, tokens=2**62, vocab=1000),
    "tokens_max": shard(tokens=MAX),
    "tokens_sum_overflow": shard(tokens=MAX - 100),
    "tokens_more": shard(tokens=6),
    "tokens_fewer": shard(tokens=4),
    "truncated": shard()[:-1],
    "truncated_tokens": shard()[:130],
    "trailing": shard() + b"x",
    "begins_not_zero": shard(begins=(1, 2, 5)),
    "begins_backwards": shard(begins=(0, 6, 5)),
    "begins_huge": shard(begins=(0, MAX, 5)),
    "begins_end_early": shard(begins=(0, 2, 4)),
    "reserved": shard(reserved=b"x" + bytes(47)),
    "padding_not_zero": shard(padding=b"xyz"),
    "checksum": shard(checksum=b"\xff" * 8),
}

HERE.mkdir(parents=True, exist_ok=True)
for name, content in SEEDS.items():
    (HERE / name).write_bytes(content)
