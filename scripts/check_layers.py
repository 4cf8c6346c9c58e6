#!/usr/bin/env python3
"""Checks what the compiler does not: the order of the folders, what public headers may include, file length.

One line a finding, FILE:LINE: message; exit code 1 when there is one. The order is that of troika/CMakeLists.txt, and
the pages that list the folders have to list the same.
"""
import re
import sys

from tree import ROOT, cpp_files

LISTED = "troika/CMakeLists.txt"
FOLDERS = re.search(r"set\(_folders\s([^)]*)\)", (ROOT / LISTED).read_text(encoding="utf-8")).group(1).split()
# A folder may include from itself and from the folders before it.
ORDER = list(dict.fromkeys(folder.split("/")[0] for folder in FOLDERS))
# How a page lists the folders: a pattern whose groups hold their names, and the names that it has to list.
PAGES = {
    "CONTRIBUTING.md": (re.compile(r"^(base .*)$", re.MULTILINE), ORDER),
    "docs/architecture.md": (re.compile(r"^\| `([a-z_/]+)` \|", re.MULTILINE), FOLDERS),
    "docs/architecture.svg": (re.compile(r'<rect class="f"[^>]*/><text class="t"[^>]*>([^<]*)<'), ORDER),
}
LONGEST = 500  # lines
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
# Heavy or clashing headers stay in implementation files, so that a program which includes ours compiles fast.
# A header for implementation files only says so in its opening comment.
INTERNAL = re.compile(r"\bInternal\b")
# A header for programs that include LibTorch themselves says so there, and may include it.
EXTENDS = re.compile(r"\bExtends LibTorch\b")
ALLOWED = {"ATen/core/Tensor.h", "c10/core/ScalarType.h"}  # the second comes with the first
HEAVY = re.compile(r"^(torch|c10d|ATen|c10|spdlog|fmt|toml\+\+|nlohmann|google/protobuf|gloo|prometheus|CLI)/|^(toml|mpi|nccl|sentencepiece_.*)\.h")


def opening_holds(path, words):
    opening = path.read_text(encoding="utf-8").split("#pragma once")[0] if path.exists() else ""
    return words.search(opening) is not None


def internal(path):
    """True of a header that only implementation files, and programs with LibTorch, may include."""
    return opening_holds(path, INTERNAL) or opening_holds(path, EXTENDS)


def folder_of(include):
    parts = include.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "troika" else None


def check_include(path, included, public):
    own = path.parts[1] if path.parts[0] == "troika" and len(path.parts) > 2 else None
    other = folder_of(included)
    if included.startswith("troika/") and not (ROOT / included).exists():
        yield f"<{included}> does not exist"
    if other and other not in ORDER:
        yield f"troika/{other} is not in the order of {LISTED}"
    elif own in ORDER and other and ORDER.index(other) > ORDER.index(own):
        yield f"troika/{own} must not include <{included}>: {other} lies below it"
    if public and included.startswith("troika/") and internal(ROOT / included):
        yield f"a public header must not include <{included}>, which says that it is internal"
    if public and included not in ALLOWED and HEAVY.search(included):
        yield f"a public header must not include <{included}>; keep it in a .cc file, or say Internal in the opening comment"


def check_page(page, text):
    pattern, expected = PAGES[page]
    found = list(pattern.finditer(text))
    listed = " ".join(match.group(1) for match in found).split()
    if listed == expected:
        return
    line = text.count("\n", 0, found[0].start()) + 1 if found else 1
    missing = [folder for folder in expected if folder not in listed]
    unknown = [folder for folder in listed if folder not in expected]
    if missing:
        yield page, line, f"the list of folders lacks {', '.join(missing)}"
    if unknown:
        yield page, line, f"the list of folders has {', '.join(unknown)}, which {LISTED} does not have"
    if not missing and not unknown:
        yield page, line, f"the folders are not listed once each, in the order of {LISTED}"


def check(path):
    relative = path.relative_to(ROOT)
    lines = path.read_text(encoding="utf-8").splitlines()
    public = relative.parts[0] == "troika" and path.suffix == ".h" and not internal(path)
    if relative.parts[0] == "troika" and len(relative.parts) > 2 and relative.parts[1] not in ORDER:
        yield relative, 1, f"troika/{relative.parts[1]} is not in the order of {LISTED}"
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield relative, 1, "a header begins with #pragma once"
    if len(lines) > LONGEST:
        yield relative, len(lines), f"{len(lines)} lines; a file is one idea and at most {LONGEST} lines long"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        for message in check_include(relative, match.group(1), public) if match else ():
            yield relative, number, message
        if UNFINISHED.search(line):
            yield relative, number, f"{UNFINISHED.search(line).group(1)}: finish it, or file an issue"


def main():
    files = cpp_files()
    findings = [finding for path in files for finding in check(path)]
    findings += [finding for page in PAGES for finding in check_page(page, (ROOT / page).read_text(encoding="utf-8"))]
    for path, number, message in findings:
        print(f"{path}:{number}: {message}")
    if findings:
        sys.exit(f"check_layers: {len(findings)} findings in {len(files)} files")
    print(f"-- Layers: {len(files)} files keep to the order of the folders, and {len(PAGES)} pages list it")


if __name__ == "__main__":
    main()
