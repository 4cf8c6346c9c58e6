#!/usr/bin/env python3
"""Writes the seeds of the image fuzz target into corpus/image: needs Pillow."""
import io
import pathlib

from PIL import Image

HERE = pathlib.Path(__file__).parent / "corpus" / "image"


def picture(mode, width=9, height=7):
    image = Image.new("RGB", (width, height))
    image.putdata([(20 * x, 30 * y, 10 * (x + y)) for y in range(height) for x in range(width)])
    return image.convert(mode)


def file_of(form, mode, **options):
    out = io.BytesIO()
    picture(mode).save(out, form, **options)
    return out.getvalue()


SEEDS = {
    "empty": b"",
    "gif": b"GIF89a",
    "jpeg_rgb": file_of("JPEG", "RGB", quality=60),
    "jpeg_progressive": file_of("JPEG", "RGB", quality=60, progressive=True),
    "jpeg_gray": file_of("JPEG", "L", quality=60),
    "jpeg_cmyk": file_of("JPEG", "CMYK", quality=60),
    "png_rgb": file_of("PNG", "RGB"),
    "png_alpha": file_of("PNG", "RGBA"),
    "png_gray": file_of("PNG", "L"),
    "png_bits": file_of("PNG", "1"),
    "png_palette": file_of("PNG", "P", transparency=0),
    "png_16_bits": file_of("PNG", "I;16"),
}


def main():
    HERE.mkdir(parents=True, exist_ok=True)
    for name, content in SEEDS.items():
        (HERE / name).write_bytes(content)
    for name in ("jpeg_rgb", "jpeg_progressive", "png_rgb"):
        (HERE / f"{name}_cut").write_bytes(SEEDS[name][:len(SEEDS[name]) * 2 // 3])
    huge = bytearray(SEEDS["jpeg_rgb"])
    frame = huge.index(b"\xff\xc0")
    huge[frame + 5:frame + 9] = b"\xf0\xf0\xf0\xf0"
    (HERE / "jpeg_huge").write_bytes(huge)


if __name__ == "__main__":
    main()
