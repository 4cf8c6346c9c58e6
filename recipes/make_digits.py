#!/usr/bin/env python3
"""Writes scikit-learn's handwritten digits as PNG images, a folder a digit: recipes/make_digits.py [FOLDER]

They are 1,797 images of 8 x 8 pixels with 17 levels of grey (Alpaydin and Kaynak 1998, "Cascading classifiers"). The
folder is data/digits unless it is named. Needs scikit-learn, which holds them; nothing is downloaded.
"""

import pathlib
import struct
import sys
import zlib

from sklearn.datasets import load_digits

LEVELS = 16


def png(rows):
    """The bytes of a grey image of eight bits; `rows` holds levels."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = rows.shape
    # Each row begins with its filter: none.
    pixels = b"".join(b"\0" + bytes(round(level * 255 / LEVELS) for level in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 9))
            + chunk(b"IEND", b""))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "data/digits")
    digits = load_digits()
    for number, (rows, label) in enumerate(zip(digits.images, digits.target)):
        path = folder / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(rows))
    print(f"{len(digits.target)} images in {folder}")


if __name__ == "__main__":
    main()
