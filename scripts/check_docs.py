#!/usr/bin/env python3
"""Checks the prose of every Markdown page: links resolve, sentences are short, words are the field's.

One line a finding, FILE:LINE: message; exit code 1 when there is one. Code blocks, headings and what is generated into a
page (behind GENERATED) are left alone; a code span counts as one word, a cell of a table as a paragraph of its own.
"""
import functools
import re
import sys

from tree import ROOT

FOLDERS = ["docs", "examples"]
LONGEST = 35  # words of a sentence
AVERAGE = 20  # words of a page's sentences
GENERATED = "<!-- What follows is printed by "
FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^#+\s+(.*)")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"``.*?``|`[^`]*`")
OPENING = re.compile(r"^\s*([-*]|\d+\.)\s+|^\s*>\s?")
SENTENCE = re.compile(r"[.!?][\"')*]*\s+(?=[\W\d]*[A-Z`]|x-code)")
# Tests are the affair of those who change the code: CONTRIBUTING.md names them.
TEST = re.compile(r"\bctest\b|--gtest_filter|\b(command|test)_(?!(?:files|fraction)\b)[a-z_]+\b|\w_test\b|\btests/[\w/]+\.(cc|py)\b|`-R ")
PRIVATE = re.compile(r"\b(whoever|nobody|somebody|everybody|one's own|of which|as ever|in turn)\b", re.IGNORECASE)


def pages():
    return sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


@functools.lru_cache(maxsize=None)
def lines_of(path):
    """The lines of a page outside of code blocks, each with its number."""
    found, fenced = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
            line = ""
        found.append((number, "" if fenced else line))
    return found


@functools.lru_cache(maxsize=None)
def anchors_of(path):
    """The anchors that GitHub gives to the headings of a page."""
    headings = [HEADING.match(line).group(1) for _, line in lines_of(path) if HEADING.match(line)]
    plain = [LINK.sub(r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def check_link(path, target):
    if re.match(r"[a-z]+:", target):
        return
    name, _, anchor = target.partition("#")
    other = (path.parent / name).resolve() if name else path
    if not other.exists():
        yield f"{target} does not exist"
    elif anchor and other.suffix == ".md" and anchor not in anchors_of(other):
        yield f"{target}: there is no such heading"


def paragraphs(lines):
    """(number of the first line, text): list items and cells of tables are paragraphs of their own."""
    start, words = 0, []
    for number, line in [*lines, (0, "")]:
        table = line.lstrip().startswith("|")
        if words and (not line.strip() or table or HEADING.match(line) or OPENING.match(line)):
            yield start, " ".join(words)
            words = []
        if table:
            yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", CODE.sub("x-code", line)))
        elif line.strip() and not HEADING.match(line):
            start = start if words else number
            words.append(OPENING.sub("", line).strip())


def sentences(lines):
    for number, text in paragraphs(lines):
        for sentence in SENTENCE.split(LINK.sub(r"\1", CODE.sub("x-code", text))):
            yield number, len(re.findall(r"\S*\w\S*", sentence)), sentence


def check(path):
    lines = lines_of(path)
    cut = next((index for index, (_, line) in enumerate(lines) if line.startswith(GENERATED)), len(lines))
    lines = lines[:cut]
    lengths = []
    text = "\n".join(line for _, line in lines)
    for match in LINK.finditer(text):
        yield from ((1 + text.count("\n", 0, match.start()), message) for message in check_link(path, match.group(2)))
    for number, line in lines:
        if path.name != "CONTRIBUTING.md" and TEST.search(line):
            yield number, f"'{TEST.search(line).group(0)}' names a test; CONTRIBUTING.md is the place"
        if PRIVATE.search(line):
            yield number, f"'{PRIVATE.search(line).group(0)}': name the rank, caller or user"
    for number, count, sentence in sentences(lines):
        lengths.append(count)
        if count > LONGEST:
            yield number, f"{count} words in a sentence, {LONGEST} are allowed: {' '.join(sentence.split()[:6])} ..."
    prose = [count for count in lengths if count > 4]
    if prose and sum(prose) / len(prose) > AVERAGE:
        yield 1, f"{sum(prose) / len(prose):.1f} words a sentence on average, {AVERAGE} are allowed"


def main():
    files = pages()
    findings = [(path.relative_to(ROOT), *finding) for path in files for finding in check(path)]
    for path, number, message in findings:
        print(f"{path}:{number}: {message}")
    if findings:
        sys.exit(f"check_docs: {len(findings)} findings in {len(files)} pages")
    print(f"-- Docs: the links of {len(files)} pages resolve, their sentences are short")


if __name__ == "__main__":
    main()
