#!/usr/bin/env python3
"""Writes the hand-made seeds of the safetensors, base and recipe fuzz targets into corpus/."""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def tensors(header, data=b""):
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype, shape, offsets):
    return '{"w":{"dtype":"%s","shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)


def two(first, second):
    entry = '"%s":{"dtype":"F32","shape":[1],"data_offsets":%s}'
    return "{" + entry % ("a", first) + "," + entry % ("b", second) + "}"


SAFETENSORS = {
    "empty": b"",
    "no_tensors": tensors("{}"),
    "padded": tensors("{}      "),
    "one": tensors(one("F32", "[2,2]", "[0,16]"), bytes(16)),
    "scalar": tensors(one("BF16", "[]", "[0,2]"), b"\x80\x3f"),
    "no_elements": tensors(one("I64", "[3,0]", "[0,0]")),
    "two": tensors(two("[0,4]", "[4,8]"), bytes(8)),
    "metadata": tensors('{"__metadata__":{"format":"pt","":"\\u0000"},' + one("U8", "[1]", "[0,1]")[1:], b"x"),
    "all_types": tensors(
        "{" + ",".join('"%s":{"dtype":"%s","shape":[8],"data_offsets":[%d,%d]}' % (t, t, b, e) for t, b, e in [
            ("I64", 0, 64), ("F64", 64, 128), ("F32", 128, 160), ("I32", 160, 192), ("BF16", 192, 208),
            ("F16", 208, 224), ("I16", 224, 240), ("I8", 240, 248), ("U8", 248, 256), ("BOOL", 256, 264)]) + "}",
        bytes(264)),
    "unframed_json": one("F32", "[1]", "[0,4]").encode() + b"\0" + bytes(4),
    "length_overflows": struct.pack("<Q", 2**64 - 8) + b"{}",
    "length_past_end": struct.pack("<Q", 1000) + b"{}",
    "length_cut": b"\x02\0\0",
    "deep_arrays": tensors('{"w":{"shape":' + "[" * 2000),
    "deep_objects": tensors('{"w":' * 500),
    "deep_unframed": ('{"w":{"shape":' + "[" * 2000).encode(),
    "overlap": tensors(two("[0,4]", "[2,6]"), bytes(6)),
    "same_place": tensors(two("[0,4]", "[0,4]"), bytes(4)),
    "hole": tensors(two("[0,4]", "[8,12]"), bytes(12)),
    "outside": tensors(two("[0,4]", "[4,8]"), bytes(4)),
    "trailing": tensors(two("[0,4]", "[4,8]"), bytes(9)),
    "backwards": tensors(one("U8", "[1]", "[1,0]"), b"x"),
    "offsets_overflow": tensors(one("U8", "[1]", "[18446744073709551615,0]"), b"x"),
    "shape_overflows": tensors(one("F64", "[4294967296,4294967296,0]", "[0,0]")),
    "shape_negative": tensors(one("U8", "[-1]", "[0,1]"), b"x"),
    "shape_fraction": tensors(one("U8", "[1.5e0]", "[0,1]"), b"x"),
    "unknown_dtype": tensors(one("F8_E4M3", "[1]", "[0,1]"), b"x"),
    "name_twice": tensors('{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                          '"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "zero_byte": tensors("{}\0garbage"),
    "escapes": tensors('{"\\ud83d\\udc0e\\n\\"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "lone_surrogate": tensors('{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
}

BASE = {
    "script": bytes(range(64)) + bytes(range(192, 256)),
    "utf8": "gr\u00fc\u00df \u20ac \U0001f40e ".encode() + b"\xc0\x8a\xed\xa0\x80\xf4\x90\x80\x80",
    "typo": b"global-batchsize",
    "control": b"\x1b[31m\n\r\t\0\x7f'\\",
}

GPT = b"name = 'a'\n[model]\nkind = 'gpt'\nlayers = 2\ndim = 64\nheads = 4\n[data]\nkind = 'random'\n"

# What follows a zero byte is a --set.
RECIPE = {
    "small": GPT,
    "mlp": b"name = 'a'\n[model]\nkind = 'mlp'\ninput_dim = 3\nhidden_dims = [4, 5]\noutput_dim = 2\n[data]\nkind = 'random'\n",
    "no_keys": b"",
    "comment": b"# nothing\n",
    "override": GPT + b"\0train.steps=7",
    "override_word": GPT + b"\0model.norm=layernorm",
    "override_unknown": GPT + b"\0model.layer=1",
    "override_table": GPT + b"\0model={kind='mlp'}",
    "override_without_value": GPT + b"\0train.steps",
    "override_newline": GPT + b"\0train.steps=1\n[model]",
    "unknown_key": GPT + b"[train]\nstesp = 3\n",
    "unknown_table": GPT + b"[trian]\nsteps = 3\n",
    "wrong_type": GPT + b"[train]\nsteps = 'many'\n",
    "beyond_int64": GPT + b"[train]\nsteps = 9223372036854775808\n",
    "largest": GPT + b"[train]\nsteps = 9223372036854775807\nglobal_batch_size = 9223372036854775807\n",
    "negative": b"seed = -1\n" + GPT,
    "not_a_number": GPT + b"[optimizer]\nlr = nan\neps = -inf\nbetas = [1e308, 5e-324]\n",
    "key_twice": b"name = 'b'\n" + GPT,
    "table_twice": GPT + b"[model]\n",
    "array_of_tables": b"[[model]]\nkind = 'gpt'\n",
    "dates": GPT + b"[observe]\ntrace_steps = [1979-05-27, 07:32:00]\n",
    "deep_arrays": b"name = " + b"[" * 3000,
    "deep_tables": b"name = " + b"{a=" * 3000,
    "deep_keys": b"a" + b".a" * 3000 + b" = 1\n",
    "not_utf8": b"name = '\xff'\n",
    "controls": b'name = "\\u0000\\u001b\\n"\n',
    "open_string": b'name = """\n',
    "provenance": GPT + b"[provenance]\nanything = {a = [1, 'x']}\n",
    "auto": GPT + b"[parallel]\ndata = 'auto'\ntensor = 1\n",
}

for name, seeds in {"recipe": RECIPE, "safetensors": SAFETENSORS, "base": BASE}.items():
    (HERE / name).mkdir(parents=True, exist_ok=True)
    for seed, content in seeds.items():
        (HERE / name / seed).write_bytes(content)
