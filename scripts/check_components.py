#!/usr/bin/env python3
"""Checks that nobody but a component's own folder, and the lists, knows a component by name.

A component is what a function such as `gpt_kind()` or `auc_metric()` gives; its options are the structs of the header
that declares it. Whoever needs to know something of a component asks the interface of its kind (ModelKind::traits).
"""
import re
import sys

from tree import ROOT

GIVER = re.compile(r"^\[\[nodiscard\]\] const (\w+)& (\w+_(?:kind|metric))\(\);", re.MULTILINE)
OPTIONS = re.compile(r"^struct (\w+Options)\b", re.MULTILINE)
LISTS = {"kinds.cc", "metric.cc"}


def components():
    """(name, the folder that may use it) of every component and its options."""
    for header in sorted((ROOT / "troika").rglob("*.h")):
        text = header.read_text()
        givers = GIVER.findall(text)
        if not givers:
            continue
        folder = header.parent.relative_to(ROOT / "troika")
        names = [name for _, name in givers]
        # A header of one component declares its options as well; one of several is a list of names.
        if len(givers) == 1 and folder.parts[0] in ("models", "data"):
            names += OPTIONS.findall(text)
        for name in names:
            yield name, folder


def main():
    owners = dict(components())
    word = re.compile(r"\b(" + "|".join(map(re.escape, owners)) + r")\b")
    findings = []
    for path in sorted((ROOT / "troika").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        relative = path.relative_to(ROOT / "troika")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("//"):
                continue
            for name in word.findall(line):
                own = owners[name]
                inside = relative.is_relative_to(own)
                listed = relative.name in LISTS and own.is_relative_to(relative.parent)
                if not inside and not listed:
                    findings.append(f"troika/{relative}:{number}: knows {name}, of troika/{own}")
    for finding in findings:
        print(finding, file=sys.stderr)
    if findings:
        sys.exit(f"check_components: {len(findings)} findings; ask the kind's interface instead")
    print(f"-- Components: {len(owners)} names stay in their folders")


if __name__ == "__main__":
    main()
