"""Language models on columns of text: rows of Parquet, JSON Lines and CSV are the documents, as files are.

Run with pytest, in an environment with pyarrow.
"""

import csv
import gzip
import json
import unittest

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from command import CommandTest

USAGE, DATA = 2, 3
TEXTS = [f"{i} " + "word " * (3 + i * 7 % 40) + "\u00e9nd\n" for i in range(60)]
COLUMN = "data.column=story"


class TableDocuments(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "files").mkdir()
        for i, text in enumerate(TEXTS):
            (self.folder / "files" / f"{i:03}.txt").write_text(text)
        pq.write_table(pa.table({"n": range(len(TEXTS)), "story": TEXTS}), self.folder / "a.parquet", row_group_size=7)
        with gzip.open(self.folder / "a.jsonl.gz", "wt") as lines:
            for i, text in enumerate(TEXTS):
                if i % 9 == 4:  # rows without text are no documents
                    lines.write('{"story": null}\n{"story": ""}\n{"n": 3}\n')
                lines.write(json.dumps({"story": text, "n": i}) + "\n")
        with open(self.folder / "a.csv", "w", newline="") as table:
            csv.writer(table).writerows([["story", "n"], *([text, i] for i, text in enumerate(TEXTS))])

    def trained(self, *sets, ranks=1):
        self.succeeds(self.train(*sets, "train.evaluation_samples=all", "model.vocab_size=300", ranks=ranks, flags=["--overwrite"]))
        return [(line["loss"], line.get("held_out_bits_per_byte")) for line in self.metrics()]

    def test_rows_are_documents_as_files_are(self):
        expected = self.trained('data.paths=["files/*.txt"]')
        self.assertIsNotNone(expected[-1][1])
        for name in ("a.parquet", "a.jsonl.gz", "a.csv"):
            for pack in ("concatenate", "isolated"):
                with self.subTest(name=name, pack=pack):
                    if pack == "isolated":
                        expected = self.trained('data.paths=["files/*.txt"]', "data.pack=isolated")
                    self.assertEqual(self.trained(f'data.paths=["{name}"]', COLUMN, f"data.pack={pack}"), expected)
                    expected = self.trained('data.paths=["files/*.txt"]')

    def test_two_ranks_and_weights(self):
        one = self.trained('data.paths=["a.parquet", "a.csv"]', COLUMN, "data.weights=[3,1]")
        two = self.trained('data.paths=["a.parquet", "a.csv"]', COLUMN, "data.weights=[3,1]", ranks=2)
        for a, b in zip(one, two):
            self.assertAlmostEqual(a[0], b[0], delta=1e-5)

    def test_shards_of_a_column_are_those_of_files(self):
        for out, paths in (("of-files", ["files/*.txt"]), ("of-table", ["a.parquet", "--column", "story"])):
            self.succeeds(self.troika("data", "prepare", out, *paths))
        self.assertEqual(*((self.folder / out / "shard-00000.tokens").read_bytes() for out in ("of-files", "of-table")))
        self.succeeds(self.troika("data", "prepare", "pieces", "a.jsonl.gz", "--column", "story", "--train-tokenizer", "--vocab-size", 280))
        tokenizer = "data.tokenizer=pieces/tokenizer.model"
        shards = self.trained("data.kind=tokens", 'data.paths=["pieces/*.tokens"]', tokenizer)
        self.assertEqual(self.trained('data.paths=["a.parquet"]', COLUMN, tokenizer), shards)
        files = self.trained('data.paths=["files/*.txt"]', tokenizer)
        self.assertEqual([loss for loss, _ in files], [loss for loss, _ in shards])

    def test_other_tables_are_evaluated(self):
        self.trained('data.paths=["a.parquet"]', COLUMN)
        found = [self.succeeds(self.troika("evaluate", "runs/small", "--data", name, "--json")).out for name in ("a.parquet", "a.csv")]
        self.assertEqual(*found)

    def test_a_prompt_is_read_and_not_learned(self):
        prompts = [f"Q{i}: {'why ' * (i % 5)}" if i % 6 else None for i in range(len(TEXTS))]
        pq.write_table(pa.table({"ask": prompts, "story": TEXTS}), self.folder / "chat.parquet", row_group_size=9)
        documents = {((prompt or "") + text).encode(): len((prompt or "").encode()) for prompt, text in zip(prompts, TEXTS)}
        sets = ('data.paths=["chat.parquet"]', COLUMN, "data.prompt_column=ask", "data.held_out_fraction=0", "train.steps=1",
                "debug.dump_steps=[1]", "train.global_batch_size=16", "train.evaluate_every_steps=0", "model.seq_len=256")
        for pack in ("concatenate", "isolated", "pad"):
            with self.subTest(pack=pack):
                losses = [self.trained(*sets, f"data.pack={pack}", ranks=ranks)[0][0] for ranks in (1, 2)]
                self.assertAlmostEqual(*losses, delta=1e-5)
                batch = load_file(self.run_folder / "dump/step-1/batch.safetensors")
                self.assertEqual(self.metrics()[0]["tokens"], int((batch["targets"] != -100).sum()))
                seen = [self.rows_of(documents, row, targets) for row, targets in zip(batch["input_ids"], batch["targets"])]
                self.assertGreater(sum(seen), 5)
        done = self.train('data.paths=["files/*.txt"]', "data.prompt_column=ask")
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("prompt_column stands before the text of `column`", done.err)

    def rows_of(self, documents, inputs, targets):
        """Checks the documents that begin in a sample, token by token, and returns how many prompts these have."""
        ids, begins = bytes(inputs.tolist()), [0, *(i + 1 for i, each in enumerate(inputs) if each == 0)]
        found = 0
        for begin in begins:
            rest = ids[begin:].split(b"\0")[0]
            whole = [text for text in documents if rest and text.startswith(rest)]
            if not rest or len(whole) != 1 or (begin == 0 and rest not in [text[:len(rest)] for text in documents]):
                continue
            prompt = documents[whole[0]]
            found += prompt > 0
            for place in range(len(rest) - 1):
                counts = place + 1 >= prompt
                self.assertEqual(targets[begin + place], inputs[begin + place + 1] if counts else -100, (rest, place))
        return found

    def test_each_file_counts_once_and_words_stay_words(self):
        done = self.train('data.paths=["a.p*", "a.parquet"]', COLUMN, flags=["--overwrite"])
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("all files of 'a.parquet' are those of paths before it", done.err)
        (self.folder / "digits.csv").write_text("story\n" + "".join(f"{i * i * i}\n" for i in range(60)))
        self.trained('data.paths=["digits.csv"]', COLUMN)

    def test_bad_columns_are_named(self):
        pq.write_table(pa.table({"story": pa.array([None, ""], pa.string())}), self.folder / "empty.parquet")
        (self.folder / "mixed.jsonl").write_text('{"story": "a"}\n' * 5 + '{"story": 3}\n')
        (self.folder / "array.json").write_text('[{"story": "a"}]')
        for paths, column, *needles in ((["a.parquet"], "stori", "there is no column 'stori'", "did you mean 'story'?"),
                                        (["a.parquet"], "n", "the column 'n' of 'a.parquet' is int64"),
                                        (["empty.parquet"], "story", "no row of the table has text"),
                                        (["mixed.jsonl"], "story", "'mixed.jsonl'", "row 5", "is a number, and a string in a row before"),
                                        (["array.json"], "story", "row 0 is an array", "jq -c '.[]'"),
                                        (["gone/*.parquet"], "story", "'gone/*.parquet'")):
            with self.subTest(paths=paths, column=column):
                done = self.train(f"data.paths={json.dumps(paths)}", f"data.column={column}")
                self.fails(done, DATA, *needles)


if __name__ == "__main__":
    unittest.main()
