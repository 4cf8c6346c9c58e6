#!/usr/bin/env python3
"""Draws docs/benchmarks.svg: the rows of "Training" in docs/benchmarks.md as ratios to their peers, with the range of the pairs.

    scripts/draw_benchmarks.py           writes the picture
    scripts/draw_benchmarks.py --check   fails where the picture is not that of the page
"""
import math
import pathlib
import sys
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PICTURE = DOCS / "benchmarks.svg"
WIDTH, LEFT, RIGHT, TOP, ROW = 900, 480, 70, 52, 26
LEAST, MOST = 0.5, 20
MARKS = (0.5, 1, 2, 5, 10, 20)


def training_rows():
    """(work, peer, ratio, lowest, highest) of each row of the table. "the same" takes the name above it."""
    lines = (DOCS / "benchmarks.md").read_text().split("\n## Training\n", 1)[1].split("\n## ", 1)[0].splitlines()
    rows, last = [], ""
    for line in lines:
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0].startswith("work") or set(cells[0]) <= {"-"}:
            continue
        work = cells[0].replace("the same", last, 1)
        if not cells[0].startswith("the same"):
            last = cells[0].split(", data =")[0]
        lowest, highest = cells[6].split(" to ")
        rows.append((work, cells[3], float(cells[5]), float(lowest), float(highest)))
    return rows


def place(ratio):
    share = math.log(max(LEAST, min(MOST, ratio)) / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def picture(rows):
    height = TOP + ROW * len(rows) + 34
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
             'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             '<text x="12" y="22" font-size="14" font-weight="bold">Speed of troika as a ratio to its peer in the same run, 2 CPU cores</text>',
             '<text x="12" y="40" fill="#555555">Right of 1: troika is faster. The line is the range of the pairs.</text>']
    for mark in MARKS:
        colour = "#222222" if mark == 1 else "#dddddd"
        parts.append(f'<line x1="{place(mark)}" y1="{TOP}" x2="{place(mark)}" y2="{TOP + ROW * len(rows)}" stroke="{colour}"/>')
        parts.append(f'<text x="{place(mark)}" y="{height - 14}" text-anchor="middle">{mark:g}</text>')
    for i, (work, peer, ratio, lowest, highest) in enumerate(rows):
        middle = TOP + ROW * i + ROW // 2
        begin, end = sorted((place(1), place(ratio)))
        colour = "#2a7f4f" if ratio >= 1 else "#b03a2e"
        parts.append(f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(work)} <tspan fill="#777777">against '
                     f'{escape(peer)}</tspan></text>')
        parts.append(f'<rect x="{begin}" y="{middle - 7}" width="{round(end - begin, 1)}" height="14" fill="{colour}"/>')
        parts.append(f'<line x1="{place(lowest)}" y1="{middle}" x2="{place(highest)}" y2="{middle}" stroke="#111111"/>')
        parts.append(f'<text x="{place(max(highest, 1)) + 6}" y="{middle + 4}">{ratio:.2f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    text = picture(training_rows())
    if "--check" not in sys.argv:
        PICTURE.write_text(text)
    elif not PICTURE.exists() or PICTURE.read_text() != text:
        sys.exit("draw_benchmarks: docs/benchmarks.svg is not the picture of docs/benchmarks.md; scripts/draw_benchmarks.py draws it")


if __name__ == "__main__":
    main()
