"""Where a mutant may be, and how many of them get into one build (scripts/mutants.py).

Each mutant keeps the line as it was and adds the changed one, behind its number: of all that are built, a process takes the one that
its environment names, and none without. So sixty mutants cost one build.
"""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
VARIABLE = "MUTANT"

# What the changed lines call. `a <Mutant{3}< b` is `a < b`, and `a <= b` in a process with MUTANT=3.
HEADER = """#pragma once
#include <cstdlib>
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wnarrowing"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wint-in-bool-context"
#pragma GCC diagnostic ignored "-Wbool-compare"
#pragma GCC diagnostic ignored "-Wbool-operation"
#pragma GCC diagnostic ignored "-Wmisleading-indentation"
#pragma GCC diagnostic ignored "-Wfloat-equal"
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"
namespace mutants {
inline const int number = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : 0;
inline int on(int mutant) { return number == mutant; }
inline int sign(int mutant) { return number == mutant ? -1 : 1; }
template <class T> T& pick(int mutant, T& one, T& other) { return on(mutant) ? other : one; }  // of one type
template <class T> const T& pick(int mutant, const T& one, const T& other) { return on(mutant) ? other : one; }
struct Mutant { int number; };
template <class T> struct Left { const T& value; int number; };
#define MUTANT_COMPARES(op, other)                                                                  \\
  template <class T> Left<T> operator op(const T& value, Mutant mutant) { return {value, mutant.number}; } \\
  template <class T, class U> auto operator op(Left<T> left, const U& right) {                      \\
    return on(left.number) ? left.value other right : left.value op right;                          \\
  }
MUTANT_COMPARES(<, <=)
MUTANT_COMPARES(<=, <)
MUTANT_COMPARES(>, >=)
MUTANT_COMPARES(>=, >)
MUTANT_COMPARES(==, !=)
MUTANT_COMPARES(!=, ==)
}
"""

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SIGNS = {"+": "-", "-": "+", "+=": "-=", "-=": "+="}
# What only words a message, names a thing or asks for memory ahead: tests of behaviour need not notice it.
WORDS = re.compile(r'"|throw |log_|#|static_assert|constexpr|^\s*//|\btemplate\b|\bcheck\(|\breserve\(|std::move\(|std::to_string\(|plural\(|\bcase\b')
STATEMENT = re.compile(r"^\s+(?!return|using|case|break|continue|const |auto |std::|at::)[a-z_][\w.\->\[\]*]*(\(.*\)| [-+*/|&]?= .*);$")
CALL = re.compile(r"\b[a-z_]\w*\(([a-z_][\w.\->]*), ([a-z_][\w.\->]*)\)")
OPENS_STATEMENT = re.compile(r"[;{}:]$|^$|^public:|^\s*//")
# The sentence of an error goes on over lines.
MESSAGE = re.compile(r"throw |Error\(|check\(|log_\w+\(|fail\(")


@dataclasses.dataclass
class Mutant:
    path: str  # from the root of the tree
    line: int  # from 1
    kind: str
    before: str
    after: str  # empty: dropped
    built: str  # the line in the build, with @ for the number
    seed: str = ""
    number: int = 0
    killer: str = ""
    reason: str = ""
    seconds: float = 0
    stages: int = 0  # so many of its stages have run

    @property
    def folder(self):
        return pathlib.PurePath(self.path).parts[1]

    @property
    def where(self):
        return f"{self.path.removeprefix('troika/')}:{self.line}"


def is_balanced(text):
    return text.count("(") == text.count(")") and text.count("{") == text.count("}")


def alternatives(operators):
    return re.compile(r" (" + "|".join(re.escape(one) for one in sorted(operators, key=len, reverse=True)) + r") ")


def mutations(line, previous):
    """Yields (kind, the changed line, the line in the build) of each change of a line."""
    code, space, remark = line.partition("  //")
    rest = space + remark
    if WORDS.search(code):
        return
    for found in alternatives(COMPARISONS).finditer(code):
        begin, operator, end = code[:found.start(1)], found[1], code[found.end(1):]
        yield "comparison", begin + COMPARISONS[operator] + end, f"{begin}{operator} ::mutants::Mutant{{@}} {operator}{end}{rest}"
    for found in alternatives(SIGNS).finditer(code):
        begin, operator, end = code[:found.start(1)], found[1], code[found.end(1):]
        if len(operator) == 1:
            yield "sign", begin + SIGNS[operator] + end, f"{begin}{operator} ::mutants::sign(@) *{end}{rest}"
        elif end.endswith(";") and is_balanced(end):
            yield "sign", begin + SIGNS[operator] + end, f"{begin}{operator} ::mutants::sign(@) * ({end[:-1]});{rest}"
    for found in re.finditer(r"(?<![\w.{'])(\d{1,4})(?![\w.'])", code):
        begin, end = code[:found.start(1)], code[found.end(1):]
        yield "bound", begin + str(int(found[1]) + 1) + end, f"{begin}({found[1]} + ::mutants::on(@)){end}{rest}"
    for found in CALL.finditer(code):
        begin, one, other, end = code[:found.start(1)], found[1], found[2], code[found.end(2):]
        if one != other and not re.match(r"(min|max)\(", found[0]):
            yield ("swap", f"{begin}{other}, {one}{end}",
                   f"{begin}::mutants::pick(@, {one}, {other}), ::mutants::pick(@, {other}, {one}){end}{rest}")
    if STATEMENT.match(code) and is_balanced(code) and OPENS_STATEMENT.search(previous):
        yield "drop", "", f"{{ if (!::mutants::on(@)) {code.strip()} }}{rest}"


def sites_of(path, text):
    previous, message = "", False
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("  //")[0].rstrip()
        message = (message or bool(MESSAGE.search(code)))
        if not message:
            for kind, after, built in mutations(line, previous):
                yield Mutant(path, number, kind, line.strip(), after.strip(), built)
        if code.endswith((";", "{", "}")):
            message = False
        previous = code


def candidates(folders):
    """{folder: {kind: [Mutant]}}"""
    found = {folder: {} for folder in folders}
    for folder in folders:
        for source in sorted((ROOT / "troika" / folder).rglob("*.cc")):
            path = str(source.relative_to(ROOT))
            for mutant in sites_of(path, source.read_text()):
                found[folder].setdefault(mutant.kind, []).append(mutant)
    return found


def draws(chance, sites, seed):
    """Yields all of them: each folder, and in it each kind, is as likely as the others."""
    while folders := sorted(folder for folder, kinds in sites.items() if any(kinds.values())):
        folder = chance.choice(folders)
        kind = chance.choice(sorted(kind for kind, found in sites[folder].items() if found))
        found = sites[folder][kind]
        yield dataclasses.replace(found.pop(chance.randrange(len(found))), seed=seed)


class Changed:
    """The sources with the mutants in them, and as they were afterwards."""

    def __init__(self, mutants, header):
        self.before, lines = {}, {}
        for mutant in mutants:
            path = ROOT / mutant.path
            if path not in lines:
                self.before[path] = path.read_text()
                lines[path] = self.before[path].splitlines()
            lines[path][mutant.line - 1] = mutant.built.replace("@", str(mutant.number))
        begin = f'#include "{header}"\n#line 1\n'
        self.after = {path: begin + "\n".join(each) + "\n" for path, each in lines.items()}

    def __enter__(self):
        for path, text in self.after.items():
            path.write_text(text)

    def __exit__(self, *_):
        for path, text in self.before.items():
            path.write_text(text)
