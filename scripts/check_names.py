#!/usr/bin/env python3
"""Checks the names that headers declare: functions, types, members and constants, not parameters or locals.

Refuses the words that say nothing of the field ("hear", "settle", "beat", "complaint"), unless ALLOWED says why one is
right, and types of a namespace whose name is a role of many: `Plugin`, `Kind`, `State`. A nested type may be called so:
its class names it. Sources of over 100 lines are read for such types, too. `--list` prints what ALLOWED lets through.
"""
import argparse
import re
import sys

from tree import ROOT

# What to write instead, by the words of a name.
REFUSED = {
    "hear hears heard": "record, receive",
    "tell tells told": "send, report, log, share",
    "settle settles settled": "resolve, finish",
    "hold holds held": "pause, lock, contain",
    "beat beats": "heartbeat",
    "keep keeps kept": "store, cache, own",
    "piece pieces": "part, chunk, segment, slice",
    "complaint complaints": "error, problem",
    "word words": "name, text",
    "place places": "rank, index, position",
}
INSTEAD = {word: instead for words, instead in REFUSED.items() for word in words.split()}
GENERIC = {"Kind", "State", "Entry", "Case", "Both", "Impl", "Plugin"}
LONG = 100  # lines of a source

# (folder or file below troika/, name, why the word is right there)
ALLOWED = [
    ("", r"\w*([Hh]eld|[Hh]old|holds)_?[Oo]ut\w*", "held-out data are the field's"),
    ("", r"holds(_[a-z]\w*)?", "says that an object contains something"),
    ("", r"(also_|steps_to_)?keep(_best|_fp32|_first|_second|_scale|_top_k|_random_k|_)?|keeps_\w+|k?[Kk]eep_?([Ll]ines|complete_lines)", "retained, not stored"),
    ("", r"k?Kept|kept_?", "retained, not stored"),
    ("", r"(add_|model_)?places_?", "the memory that values are read to"),
    ("", r"place_(gradients|slots)", "a verb: lays gradients out"),
    ("data", r"Kept\w+", "the columns of `troika predict --keep`"),
    ("data", r"\w*[Ww]ords?\w*|make_word_pieces", "text: what a category, a label or a tokenizer's model is made of"),
    ("data/sentencepiece", r"SentencePiece\w*", "the name of the library"),
    ("config", r"(allowed_)?words?|WordSpec", "a word that a recipe may have"),
    ("comm/shm", r"futex_word", "a word of the machine's memory, as futex(2) says"),
    ("session", r"ranks_in_words", "the text of a message"),
    ("comm/shm/engine.h", r"kInPlace", "a reduction in place, as MPI calls it"),
    ("observe", r"place_?", "the name of this field in flight records and in `troika inspect --json`"),
    ("comm/failure", r"place", "the name of this field in flight records"),
    ("storage", r"place_?|\w+_place|place_\w+", "a folder or a URL"),
    ("checkpoint", r"place_?", "a folder or a URL"),
    ("plan", r"(Tensor|tensor_)?[Pp]lace", "the memory that tensors lie in"),
    ("param", r"place", "a verb: lays parameters out"),
]


def code_of(text):
    """The text, with comments, literals and directives as blanks."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"|(?<!\w)\'(\\.|[^\'\\\n])+\'', lambda match: '"' + " " * (len(match.group()) - 2) + '"', text)
    return re.sub(r"^[ \t]*#[^\n]*(\\\n[^\n]*)*", blank, text, flags=re.M)


def scope_of(head):
    """What a brace opens behind `head`: a namespace, a type, or else the body of a function or a value."""
    if "(" in head or head.rstrip().endswith("="):
        return "body"
    if re.search(r"\bnamespace\b|\bextern\b", head):
        return "namespace"
    return "type" if re.search(r"\b(class|struct|enum|union)\b", head) else "body"


def declarations(text):
    """(line, name, "type" or "name", whether it is a namespace's) of what the text declares."""
    code = list(code_of(text))
    scopes, begin, depth = [], 0, []
    for i, sign in enumerate(code):
        depth.append(tuple(scopes[-1:]))
        inside = any(scope in ("body", "list") for scope in scopes)
        if sign in "([":
            scopes.append("list")
        elif sign == "{":
            scopes.append("body" if inside else scope_of("".join(code[begin:i])))
            if scopes[-1] != "body":
                begin = i + 1
        elif sign in ")]}" and scopes:
            closed = scopes.pop()
            if sign == "}" and closed != "body" and not inside:
                begin = i + 1
        elif sign == ";" and not inside:
            begin = i + 1
        elif inside and sign != "\n":
            code[i] = " "
        if closes_body(sign, scopes):
            begin = i + 1
    flat = "".join(code)
    for match in re.finditer(r"[A-Za-z_]\w*", flat):
        before = re.search(r"(\w+|[^\w\s])\s*$", flat[:match.start()][-200:])
        before = before.group(1) if before else ""
        after = flat[match.end():match.end() + 200].lstrip()[:1]
        is_type = before in ("class", "struct", "enum", "union", "using") and not flat[:match.start()].rstrip()[:-len(before)].rstrip().endswith(("<", ","))
        is_name = after in tuple("(;={,}[") and re.match(r"\w|[>*&{,]", before) and before not in ("return", "namespace")
        if is_type or is_name:
            is_alias = re.match(rf"\s*=\s*[\w:]+::{match.group()}\s*;", flat[match.end():match.end() + 200])
            in_namespace = depth[match.start()] in ((), ("namespace",)) and not is_alias
            yield flat.count("\n", 0, match.start()) + 1, match.group(), "type" if is_type else "name", in_namespace


def closes_body(sign, scopes):
    """True behind the body of a function: no ';' follows it."""
    return sign == "}" and not any(scope in ("body", "list") for scope in scopes)


def words_of(name):
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def reason_to_allow(path, name):
    for where, pattern, reason in ALLOWED:
        if path.startswith(where) and re.fullmatch(pattern, name):
            return reason
    return None


def problem_of(name, kind, in_namespace):
    if name in GENERIC and kind == "type" and in_namespace:
        return f"give `{name}` a role, such as `Arrow{name}`"
    for word in words_of(name):
        if word in INSTEAD:
            return f"`{name}`: instead of '{word}' say {INSTEAD[word]}"
    if re.fullmatch(r"(is|was|are|were)_at_?", name):
        return f"`{name}`: instead of 'at' say what is done"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the names that ALLOWED lets through")
    arguments = parser.parse_args()
    found, used, count = [], set(), 0
    for path in sorted((ROOT / "troika").rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        text, below = path.read_text(), path.relative_to(ROOT / "troika").as_posix()
        is_header = path.suffix in (".h", ".cuh")
        if not is_header and text.count("\n") <= LONG:
            continue
        for line, name, kind, in_namespace in declarations(text):
            if not is_header and (name not in GENERIC or not in_namespace):
                continue
            count += is_header
            problem = problem_of(name, kind, in_namespace)
            if problem is None:
                continue
            reason = reason_to_allow(below, name)
            if reason is None:
                found.append(f"troika/{below}:{line}: {problem}")
            elif arguments.list:
                print(f"troika/{below}:{line}: {name}: {reason}")
            used.add((below, name))
    for where, pattern, reason in ALLOWED:
        if not any(path.startswith(where) and re.fullmatch(pattern, name) for path, name in used):
            found.append(f"scripts/check_names.py: no header needs {pattern!r} ({reason}) any more")
    for line in found:
        print(line, file=sys.stderr)
    if found:
        sys.exit(f"check_names: {len(found)} names say nothing of the field; ALLOWED is for those that do")
    print(f"-- Names: {count} declarations in headers")


if __name__ == "__main__":
    main()
