#!/usr/bin/env python3
"""Compares our safetensors reader and writer with the `safetensors` package.

    safetensors_roundtrip.py SAFETENSORS_TOOL

Files that the package wrote, read and written again by ours, must have the same bytes and read as the
same tensors. Of damaged files ours must refuse all that the package refuses, in one line that names the
file. Seeded: the same files every time.

Exit status: 0 they agree, 1 they do not (what is different on stderr), 2 usage.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import safetensors

# As the package calls them when writing and when reading, and bytes an element.
TYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
NAMES = ["model.layers.%d.weight", "quote\"%d", "back\\slash %d", "line\nbreak\x1b%d", "gr\u00fc\u00df \U0001f40e %d", "%d"]


def write_reference(path, draw):
    """Writes random tensors with the package; returns {name: (type, shape, bytes)}."""
    expected, specs, keep = {}, {}, []
    for i in range(draw.randrange(9)):
        name = draw.choice(NAMES) % i
        written, (read, size) = draw.choice(list(TYPES.items()))
        shape = [draw.randrange(5) for _ in range(draw.randrange(5))]
        content = draw.randbytes(int(np.prod(shape, dtype=np.int64)) * size)
        if read == "BOOL":
            content = bytes(byte & 1 for byte in content)
        keep.append(np.frombuffer(content, dtype=np.uint8))
        specs[name] = safetensors.TensorSpec(dtype=written, shape=shape, data_ptr=keep[-1].ctypes.data, data_len=len(content))
        expected[name] = (read, shape, content)
    # One key at most: the package writes several in any order.
    metadata = draw.choice([None, {"format": "pt"}, {"k\u20ac\n": "\"v\"\x7f"}])
    path.write_bytes(bytes(safetensors.serialize(specs, metadata)))
    return expected


def read_reference(content):
    """{name: (type, shape, bytes)}, or None where the package refuses."""
    try:
        return {
            name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
            for name, tensor in safetensors.deserialize(content)
        }
    except safetensors.SafetensorError:
        return None


def damaged(content, draw):
    content = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(draw.randrange(1, 3)):
        at = draw.randrange(header if draw.random() < 0.9 else max(len(content), 1))
        kind = draw.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(content):
            content[at] = draw.choice(b"0123456789-[]{}\",:. e")
        elif kind == 2:
            del content[draw.randrange(len(content) + 1):]
        elif kind == 3:
            content += draw.randbytes(draw.randrange(1, 9))
        else:
            # Swaps two digits of the header: shapes, offsets, names.
            digits = [i for i in range(8, min(header, len(content))) if chr(content[i]).isdigit()]
            if digits:
                a, b = draw.choice(digits), draw.choice(digits)
                content[a], content[b] = content[b], content[a]
    return bytes(content)


def compare_copies(tool, folder, files):
    """Problems, one string each."""
    arguments = [str(p) for name in files for p in (folder / name, folder / (name + ".copy"))]
    subprocess.run([tool, "copy", *arguments], check=True, timeout=60)
    for name, expected in files.items():
        original, copy = (folder / name).read_bytes(), (folder / (name + ".copy")).read_bytes()
        if read_reference(copy) != expected:
            yield f"{name}: the package reads other tensors from our copy"
        if copy != original:
            yield f"{name}: our copy has other bytes:\n  {original[:300]}\n  {copy[:300]}"


def compare_damaged(tool, folder, originals, draw, count):
    paths = []
    for i in range(count):
        paths.append(folder / f"damaged-{i}")
        paths[-1].write_bytes(damaged(draw.choice(originals), draw))
    done = subprocess.run([tool, "check", *map(str, paths)], check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if len(lines) != count:
        yield f"{len(lines)} lines for {count} damaged files"
        return
    accepted = 0
    for path, line in zip(paths, lines):
        reference = read_reference(path.read_bytes())
        accepted += line == "ok"
        if line == "ok" and reference is None:
            yield f"ours accepts what the package refuses: {path.read_bytes()[:300]}"
        if line != "ok" and not line.startswith(f"'{path}': "):
            yield f"the error does not name the file: {line}"
    # Both outcomes must occur, or the comparison says nothing.
    if not 0 < accepted < count:
        yield f"{accepted} of {count} damaged files accepted"
    print(f"{count} damaged files, of which {accepted} still read")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    draw = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="troika-test-") as name:
        folder = pathlib.Path(name)
        files = {f"file-{i}": None for i in range(200)}
        for file in files:
            files[file] = write_reference(folder / file, draw)
        problems = list(compare_copies(sys.argv[1], folder, files))
        print(f"{len(files)} files copied")
        originals = [(folder / file).read_bytes() for file in files]
        problems += compare_damaged(sys.argv[1], folder, originals, draw, 2000)
    for problem in problems[:10]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
