#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over every file that BUILD_FOLDER compiles: scripts/tidy.py BUILD_FOLDER

Reading LibTorch's headers takes ten seconds a file, so files compiled with the same flags are read together,
a dozen at a time; where two of them do not get along (helpers of the same name), they are split up. A file
that passed is remembered in the cache by its content, its headers', the flags and the checks.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cache import cache_root, digest, pins
from tree import ROOT

TOGETHER = 12
# A test may look at what a move left behind and copy a string, and may be one long function.
NOT_IN_TESTS = "-bugprone-command-processor,-bugprone-use-after-move,-performance-*,-readability-function-size,-google-explicit-constructor"
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<((?:troika)/[^>]+)>|"([^"]+)")', re.MULTILINE)
PRECOMPILED = re.compile(r"pch_(\w+)\.dir/cmake_pch")
GCC_ONLY = {"-fpch-preprocess", "-Winvalid-pch", "-fopenmp", "-Werror"}


def tool():
    script = Path(__file__).resolve().parent / "python_env.py"
    environment = subprocess.run([sys.executable, str(script), "lint"], stdout=subprocess.PIPE, text=True)
    if environment.returncode:
        sys.exit(environment.returncode)
    return Path(environment.stdout.strip()).parent / "clang-tidy"


def flags_of(command):
    """The flags that matter to clang, with the precompiled header as an ordinary one."""
    words, flags = iter(shlex.split(command)[1:]), []
    for word in words:
        if word in ("-o", "-c"):
            next(words)
        elif word == "-include":
            precompiled = PRECOMPILED.search(next(words))
            flags += ["-include", str(ROOT / f"cmake/pch/{precompiled.group(1)}.h")] if precompiled else []
        elif word in ("-isystem", "-I"):
            flags += [word, next(words)]
        elif re.match(r"-(I|D|std|isystem)", word) and word not in GCC_ONLY:
            flags.append(word)
    return tuple(flags)


def compiled_files(build):
    """{file: flags} of the tree's own files."""
    files = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("troika", "tests", "bench", "examples")
        if inside and path.suffix == ".cc":
            files[path] = flags_of(entry["command"])
    return files


def closure(path, seen):
    """The file and the project's headers that it reaches."""
    if path in seen or not path.is_file():
        return seen
    seen.add(path)
    for angled, quoted in INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")):
        near = path.parent / quoted
        closure((ROOT / angled if angled else near if near.is_file() else ROOT / quoted).resolve(), seen)
    return seen


def key(path, flags, config):
    contents = [(str(p.relative_to(ROOT)), p.read_bytes()) for p in sorted(closure(path, set()))]
    return digest(contents, [flag.replace(f"{ROOT}", "") for flag in flags], config)  # the same in another clone


def run(binary, paths, flags):
    """clang-tidy's findings on these files, and whether it could read them all."""
    with tempfile.TemporaryDirectory() as scratch:
        together = paths[0]
        if len(paths) > 1:
            together = Path(scratch) / "together.cc"
            together.write_text("".join(f'#include "{path}"\n' for path in paths))
        names = "|".join(re.escape(str(path)) for path in paths)
        fewer = [f"--checks={NOT_IN_TESTS}"] if paths[0].is_relative_to(ROOT / "tests") else []
        command = [binary, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", *fewer, "--header-filter",
                   rf"({names}|{re.escape(str(ROOT))}/(troika|tests|bench|examples)/.*\.h)$", str(together), "--", *flags]
        output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    text = output.stdout.replace(f"{ROOT}/", "")
    return text, "[clang-diagnostic-error]" not in text and output.returncode in (0, 1)


def check(binary, paths, flags):
    """[(findings, files that passed)] of files that share flags."""
    text, read = run(binary, paths, flags)
    if read or len(paths) == 1:
        named = {ROOT / name for name in re.findall(r"^([^\s:]+):\d+:\d+: (?:warning|error)", text, re.MULTILINE)}
        passed = [path for path in paths if not named & closure(path, set())] if read else []
        return [(text or ("" if read else f"{paths[0]}: clang-tidy could not read it"), passed)]
    half = len(paths) // 2
    return check(binary, paths[:half], flags) + check(binary, paths[half:], flags)


def main():
    build = Path(sys.argv[1]).resolve()
    binary = tool()
    passed = cache_root() / "tidy"
    passed.mkdir(exist_ok=True)
    config = (NOT_IN_TESTS, (ROOT / ".clang-tidy").read_text(), sorted(pins("lint")), [p.read_text() for p in sorted((ROOT / "cmake/pch").iterdir())])
    files = compiled_files(build)
    marks = {path: passed / key(path, flags, config) for path, flags in files.items()}
    groups = {}
    for path in sorted(files):
        if not marks[path].exists():
            groups.setdefault((path.relative_to(ROOT).parts[0], files[path]), []).append(path)
    work = [(paths[i:i + TOGETHER], flags) for (_, flags), paths in groups.items() for i in range(0, len(paths), TOGETHER)]
    unknown = sum(len(paths) for paths, _ in work)
    print(f"-- clang-tidy: {len(files)} files, {len(files) - unknown} of them unchanged since they passed", flush=True)
    good = 0
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(check, binary, *item) for item in work]):
            for findings, paths in done.result():
                if findings.strip():
                    print(findings.rstrip(), flush=True)
                for path in paths:
                    marks[path].touch()
                good += len(paths)
    if good < unknown:
        sys.exit(f"tidy: findings in {unknown - good} of {unknown} files")
    print(f"-- clang-tidy: {unknown} files checked, no findings")


if __name__ == "__main__":
    main()
