#!/usr/bin/env python3
"""Checks that comments say what they are about, in words that name it.

Comments on declarations in headers begin with a verb, or with another word that begins a sentence. Those that open with
a fragment ("Of the whole", "What a unit is") are counted, folder by folder; more than 3 % of a folder's are an error.
A function's says "Returns ..." instead of "What", "Who" or "Whether". No comment of a header has a word of NAMELESS.

Each file opens with a comment that says what it is for. A source is opened by the header of its name, and a unit test
by the header or the source that it is named after. `--list` prints the fragments, `--folder` looks at one folder alone.
"""
import argparse
import re
import sys

from tree import ROOT, tracked_files

FRAGMENT = re.compile(
    r"(Of|What|Whether|Who|Whose|Which|Where|How|By|In|On|At|For|From|To|With|Without|Beside|Behind|Before|After|Over|"
    r"Under|Between|Among|As|Also|Else|Likewise|Same|Those|That|Told|Asked|Empty|Absent|Nothing|Null|Sorted|"
    r"Once|Never|Always|Only|Not(?! thread safe)|Filled|Called|Made|Held|Kept|Given)\b")
LARGEST_SHARE = 0.03
INDIRECT = re.compile(r"(What|Who|Whose|Whom|Whether|Which|How)\b")
NAMELESS = re.compile(r"\b(whoever|nobody|somebody|everybody|anybody|one's own|of which|as ever)\b", re.I)
# Instead of these an opening names its subject. A title ("What the peers share: ...") does.
PRONOUN = re.compile(r"(It|They|This|These|Those|He|She|We)\b(?! (file|folder|header|program|script|test)s?\b)")
MOST_SENTENCES = 5


def comments(lines):
    """(line, text, the code below) of each comment block of its own that stands above code, the file's own excepted."""
    i = next((i for i, line in enumerate(lines) if line.startswith("#pragma once")), 0)
    while i < len(lines):
        if not lines[i].strip().startswith("// "):
            i += 1
            continue
        first = i
        while i < len(lines) and lines[i].strip().startswith("//"):
            i += 1
        after = " ".join(line.strip() for line in lines[i:i + 3])
        text = lines[first].strip()[3:]
        if after and not after.startswith(("}", "namespace", "#")) and not text.endswith("---"):
            yield first + 1, text, after


def is_function(code):
    head = re.split(r"[;{=]", code, maxsplit=1)[0]
    return "(" in head and not re.match(r"(class|struct|enum|using|inline constexpr|static constexpr)\b", head)


def problems_of_header(path):
    lines = path.read_text().splitlines()
    for number, text, below in comments(lines):
        if INDIRECT.match(text) and is_function(below):
            yield number, f"'{text[:50]}': a function's comment says what it returns or does"
    for number, line in enumerate(lines, 1):
        found = NAMELESS.search(line.partition("//")[2])
        if found:
            yield number, f"'{found.group()}' names no one: say rank, caller, engine, user"


def fragments_of_folders(arguments):
    """Prints the folders with too many, and returns how many there are in all, of how many comments."""
    worst, total, fragments = [], 0, 0
    for folder in sorted(path for path in (ROOT / "troika").iterdir() if path.is_dir()):
        if arguments.folder and folder.name != arguments.folder:
            continue
        found, count = [], 0
        for header in sorted(folder.rglob("*.h")):
            for line, text, _ in comments(header.read_text().splitlines()):
                count += 1
                if FRAGMENT.match(text):
                    found.append(f"{header.relative_to(ROOT)}:{line}: {text}")
        if arguments.list and found:
            print("\n".join(found))
        total, fragments = total + count, fragments + len(found)
        if len(found) > max(1, LARGEST_SHARE * count):
            worst.append(f"troika/{folder.name}: {len(found)} of {count} comments begin with a fragment: --list")
    return worst, total, fragments


def opening_of(path):
    """The first paragraph of a file's own comment, in one line; empty where it has none."""
    text = re.sub(r"\A(#!.*\n|#pragma once\n|\s)*", "", path.read_text())
    if path.suffix == ".py":
        quoted = re.match(r'r?"""(.*?)"""', text, re.S)
        if quoted:
            return " ".join(quoted.group(1).strip().split("\n\n")[0].split())
    if text.startswith("/*"):
        block = text[2:text.index("*/")].splitlines()
    else:
        mark = "#" if path.suffix in (".py", ".sh", ".cmake") else "//"
        block = []
        for line in text.splitlines():
            if not line.startswith(mark):
                break
            block.append(line[len(mark):])
    plain = "\n".join(line.strip(" *") for line in block).strip()
    return " ".join(plain.split("\n\n")[0].split())


def sentences_of(paragraph):
    plain = re.sub(r"\([^)]*\)|\b(e\.g|i\.e|et al|vs|cf)\.|\bInternal\.", "", paragraph)
    return len(re.findall(r"[.!?](?=\s+[A-Z`\"]|$)", plain))


def problem_of_opening(path, stems):
    opening = opening_of(path)
    if not opening:
        named_after = path.stem.removesuffix("_test") if path.stem.endswith("_test") else None
        is_opened = path.suffix in (".cc", ".cu") and (
            path.with_suffix(".h").exists() or path.with_suffix(".cuh").exists() or named_after in stems)
        return None if is_opened else "the file does not open with a comment that says what it is for"
    if PRONOUN.match(opening):
        return f"'{opening[:50]}': an opening names its subject"
    count = sentences_of(opening)
    if count > MOST_SENTENCES:
        return f"an opening of {count} sentences: say in three what the file is for, and the rest behind an empty line"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every fragment")
    parser.add_argument("--folder", help="of troika/, such as comm")
    arguments = parser.parse_args()
    problems, total, fragments = fragments_of_folders(arguments)
    files = [path for path in tracked_files() if path.suffix in (".h", ".cc", ".cu", ".cuh", ".c", ".py", ".sh")]
    stems = {path.stem for path in files if path.is_relative_to(ROOT / "troika")}
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".h", ".cuh"):
            problems += [f"{name}:{number}: {problem}" for number, problem in problems_of_header(path)]
        problem = problem_of_opening(path, stems)
        if problem:
            problems.append(f"{name}:1: {problem}")
    for line in problems:
        print(line, file=sys.stderr)
    if problems:
        sys.exit(f"check_comments: {len(problems)} comments do not say what they are about")
    print(f"-- Comments: {len(files)} files open with what they are for; {fragments} of {total} in headers begin with a fragment")


if __name__ == "__main__":
    main()
