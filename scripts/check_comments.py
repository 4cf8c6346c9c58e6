#!/usr/bin/env python3
"""Checks that comments on declarations in headers begin with a verb, or with another word that begins a sentence.

A comment that opens with a fragment ("Of the whole", "What a unit is", "Whether ...") is counted, folder by folder;
more than 3 % of a folder's comments are an error. `--list` prints every one, `--folder` looks at one folder alone.
"""
import argparse
import re
import sys

from tree import ROOT

FRAGMENT = re.compile(
    r"(Of|What|Whether|Who|Whose|Which|Where|How|By|In|On|At|For|From|To|With|Without|Beside|Behind|Before|After|Over|"
    r"Under|Between|Among|As|Also|Else|Likewise|Same|Those|That|The same|Told|Asked|Empty|Absent|Nothing|Null|Sorted|"
    r"Once|Never|Always|Only|Not|Filled|Called|Made|Held|Kept|Given)\b")
LARGEST_SHARE = 0.03


def comments(path):
    """(line, first words) of each comment block of its own that stands above code, the file's own excepted."""
    lines = path.read_text().splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith("#pragma once")), 0)
    i = begin
    while i < len(lines):
        line = lines[i].strip()
        if not line.startswith("// "):
            i += 1
            continue
        first = i
        while i < len(lines) and lines[i].strip().startswith("//"):
            i += 1
        after = lines[i].strip() if i < len(lines) else ""
        if after and not after.startswith(("}", "namespace", "#")):
            yield first + 1, line[3:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every fragment")
    parser.add_argument("--folder", help="of troika/, such as comm")
    arguments = parser.parse_args()
    worst, total, fragments = [], 0, 0
    for folder in sorted(path for path in (ROOT / "troika").iterdir() if path.is_dir()):
        if arguments.folder and folder.name != arguments.folder:
            continue
        found, count = [], 0
        for header in sorted(folder.rglob("*.h")):
            for line, text in comments(header):
                count += 1
                if FRAGMENT.match(text):
                    found.append(f"{header.relative_to(ROOT)}:{line}: {text}")
        if arguments.list:
            print("\n".join(found))
        total, fragments = total + count, fragments + len(found)
        if len(found) > max(1, LARGEST_SHARE * count):
            worst.append(f"troika/{folder.name}: {len(found)} of {count} comments begin with a fragment")
    for line in worst:
        print(line, file=sys.stderr)
    if worst:
        sys.exit(f"check_comments: say what is done, with the verb first; --list shows where ({fragments} of {total})")
    print(f"-- Comments: {fragments} of {total} in headers begin with a fragment")


if __name__ == "__main__":
    main()
