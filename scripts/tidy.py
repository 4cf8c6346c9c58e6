#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over every file that BUILD_FOLDER compiles: scripts/tidy.py BUILD_FOLDER [--changed COMMITS]

BUILD_FOLDER has been configured with -DTROIKA_UNITY=OFF, so that each file has a command of its own; nothing need be
built there. With --changed, only files that the last COMMITS commits or the work tree change: a source, and for a
header one source that includes it.

Reading LibTorch's headers takes ten seconds a file, so files compiled with the same flags are read together,
a dozen at a time; where two of them do not get along (helpers of the same name), they are split up. A file
that passed is remembered in the cache by its content, its headers', the flags and the checks.
"""
import argparse
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


def git(*words):
    """The lines that git prints; None where there is no git, or no such commit."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.splitlines()


def changed_among(files, commits):
    """Those that the last commits change, a source for each header among them; all of them where git does not say."""
    history = git("rev-list", "--first-parent", f"--max-count={commits + 1}", "HEAD")
    names = git("diff", "--name-only", history[-1]) if history else None
    if names is None:
        return files
    changed = {ROOT / name for name in names + (git("ls-files", "--others", "--exclude-standard") or [])}
    chosen = changed & files.keys()
    headers = {path for path in changed if path.suffix == ".h" and path.is_file()}
    # The source of the same name first: where it includes the header, it says most of it.
    for path in sorted(files, key=lambda path: (path.with_suffix(".h") not in headers, path)):
        reached = headers & closure(path, set()) if headers else set()
        if reached:
            chosen.add(path)
            headers -= reached
    print(f"-- clang-tidy: {len(chosen)} of {len(files)} files are changed since {history[-1][:12]}, or check a header that is")
    return {path: files[path] for path in chosen}


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
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--changed", type=int, metavar="COMMITS")
    options = parser.parse_args()
    build = options.build.resolve()
    binary = tool()
    passed = cache_root() / "tidy"
    passed.mkdir(exist_ok=True)
    config = (NOT_IN_TESTS, (ROOT / ".clang-tidy").read_text(), sorted(pins("lint")), [p.read_text() for p in sorted((ROOT / "cmake/pch").iterdir())])
    files = compiled_files(build)
    if options.changed:
        files = changed_among(files, options.changed)
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
