"""The scripts of `make test`, `make lint` and .ci/run: which tests are too slow, which slow tests are next, which files
are tidied, how pages read."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from slow import main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import check_budget  # noqa: E402
import check_docs  # noqa: E402
import mutant_sites  # noqa: E402
import slow_slice  # noqa: E402
import tidy  # noqa: E402

RESULTS = """<?xml version="1.0"?>
<testsuite>
  <testcase name="quick" time="0.5" status="run"/>
  <testcase name="wrong" time="70" status="fail"/>
  <testcase name="left_out" time="0" status="notrun"/>
</testsuite>
"""


class Mutants(unittest.TestCase):
    def mutants(self, text):
        return {(each.line, each.kind, each.after): each.built for each in mutant_sites.sites_of("troika/sync/one.cc", text)}

    def test_a_mutant_keeps_the_line_beside_what_it_becomes(self):
        found = self.mutants("{\n  if (a < limit(b, c)) return d + 7;\n  forget(e);\n}\n")
        self.assertEqual(found[2, "comparison", "if (a <= limit(b, c)) return d + 7;"],
                         "  if (a < ::mutants::Mutant{@} < limit(b, c)) return d + 7;")
        self.assertEqual(found[2, "sign", "if (a < limit(b, c)) return d - 7;"],
                         "  if (a < limit(b, c)) return d + ::mutants::sign(@) * 7;")
        self.assertEqual(found[2, "bound", "if (a < limit(b, c)) return d + 8;"],
                         "  if (a < limit(b, c)) return d + (7 + ::mutants::on(@));")
        self.assertEqual(found[2, "swap", "if (a < limit(c, b)) return d + 7;"],
                         "  if (a < limit(::mutants::pick(@, b, c), ::mutants::pick(@, c, b))) return d + 7;")
        self.assertEqual(found[3, "drop", ""], "{ if (!::mutants::on(@)) forget(e); }")
        self.assertEqual(len(found), 5)

    def test_words_and_parts_of_statements_are_left_alone(self):
        self.assertEqual(self.mutants("""{
  throw DataError("it has " + std::to_string(a + 1) +
                  others(b + 2, c));
  // if (a < b) go_on(c);
  made.push_back(std::min(a, b) ==
                 size(c));
}
"""), {})


class Budget(unittest.TestCase):
    def findings(self, seconds, budget):
        return list(check_budget.findings_of(seconds, budget))

    def test_more_than_double_is_told_and_four_times_an_error(self):
        budget = {"one": 20, "two": 20, "three": 20}
        self.assertEqual(self.findings({"one": 39, "two": 20, "three": 15}, budget), [])
        (finding, is_error), = self.findings({"one": 41, "two": 20, "three": 15}, budget)
        self.assertEqual(finding, "one took 41 s, its budget is 20 s")
        self.assertFalse(is_error)
        (finding, is_error), = self.findings({"one": 81, "two": 20, "three": 15}, budget)
        self.assertTrue(is_error)

    def test_a_machine_that_is_busy(self):
        budget = {"one": 20, "two": 20, "three": 20}
        self.assertEqual(self.findings({"one": 100, "two": 60, "three": 60}, budget), [])
        (finding, is_error), = self.findings({"one": 130, "two": 60, "three": 60}, budget)
        self.assertIn("on a machine that is 3.0 times as slow", finding)
        self.assertFalse(is_error)

    def test_a_few_seconds_are_no_finding(self):
        self.assertEqual(self.findings({"one": 9, "two": 20}, {"one": 1, "two": 20}), [])
        self.assertEqual(len(self.findings({"one": 11, "two": 20}, {"one": 1, "two": 20})), 1)

    def test_a_slow_test_without_a_budget(self):
        self.assertEqual(self.findings({"new": 9}, {}), [])
        (finding, is_error), = self.findings({"new": 11}, {})
        self.assertEqual(finding, "new took 11 s, its budget is 5.0 s for want of an entry")
        self.assertFalse(is_error)
        self.assertTrue(self.findings({"new": 21}, {})[0][1])

    def test_only_what_has_passed_counts(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(RESULTS)
            file.flush()
            self.assertEqual(check_budget.seconds_of(file.name), {"quick": 0.5})


class Slices(unittest.TestCase):
    def test_each_is_run_in_eight_landings(self):
        with tempfile.TemporaryDirectory(prefix="troika-test-") as cache, \
                mock.patch.dict(os.environ, TROIKA_CACHE=cache), \
                mock.patch.object(slow_slice, "number_of_commits", return_value=6):
            chosen = []
            for landing in range(16):  # of 8 commits each, or of none
                chosen.append(slow_slice.next_slice())
                slow_slice.mark(chosen[-1]).touch()
                os.utime(slow_slice.mark(chosen[-1]), (landing + 1, landing + 1))
            self.assertEqual(chosen, [6, 7, 0, 1, 2, 3, 4, 5] * 2)

    def test_without_a_memory_commits_are_counted(self):
        with tempfile.TemporaryDirectory(prefix="troika-test-") as cache, mock.patch.dict(os.environ, TROIKA_CACHE=cache):
            for commits in range(9):
                with mock.patch.object(slow_slice, "number_of_commits", return_value=commits):
                    self.assertEqual(slow_slice.next_slice(), commits % 8)


class Tidy(unittest.TestCase):
    def chosen(self, *changed):
        """Of three files of base, where these are changed."""
        files = {tidy.ROOT / "troika" / "base" / name: () for name in ("bytes.cc", "file.cc", "text.cc")}
        said = {"rev-list": ["head", "base"], "diff": list(changed), "ls-files": []}
        with mock.patch.object(tidy, "git", side_effect=lambda *words: said[words[0]]):
            return sorted(path.name for path in tidy.changed_among(files, 25))

    def test_sources_and_one_for_each_header(self):
        self.assertEqual(self.chosen(), [])
        self.assertEqual(self.chosen("README.md", "troika/base/file.cc"), ["file.cc"])
        self.assertEqual(self.chosen("troika/base/text.h"), ["text.cc"])

    def test_everything_where_git_does_not_say(self):
        with mock.patch.object(tidy, "git", return_value=None):
            self.assertEqual(tidy.changed_among({"one": (), "two": ()}, 25), {"one": (), "two": ()})


class Docs(unittest.TestCase):
    def findings(self, text):
        with tempfile.TemporaryDirectory(prefix="troika-test-") as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text(text)
            return [message for _, message in check_docs.check(page)]

    def test_links(self):
        self.assertEqual(self.findings("# One `two`\n[here](#one-two), [there](https://example.org), [a\npage](page.md#one-two)\n"), [])
        self.assertEqual(self.findings("[a\npage](other.md)\n"), ["other.md does not exist"])
        self.assertEqual(self.findings("# One\n[here](#two)\n"), ["#two: there is no such heading"])

    def test_sentences(self):
        words = "word " * 18
        self.assertEqual(self.findings(f"{words}.\n{words.title()}.\n\n- {words}\n- {words}\n\n| {words} | {words} |\n"), [])
        long, average = self.findings(words + "\n" + words)
        self.assertTrue(long.startswith("36 words in a sentence, 35 are allowed: word"), long)
        self.assertTrue(average.startswith("36.0 words a sentence on average"), average)
        self.assertEqual(self.findings(f"```\n{words * 2}\n```\n`{words * 2}` is one word.\n"), [])
        self.assertEqual(self.findings(f"Short.\n{check_docs.GENERATED}`troika recipe --docs` -->\n{words * 2}\n"), [])

    def test_words(self):
        for line in ("Run `ctest -R command_mesh`.", "`tests/unit/one_test.cc` shows it."):
            self.assertIn("names a test", *self.findings(line))
        self.assertIn("'Nobody': name the rank", *self.findings("Nobody waits."))


if __name__ == "__main__":
    main()
