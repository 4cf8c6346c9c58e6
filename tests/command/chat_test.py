"""Conversations: samples of a run are those of `transformers`' chat templates, on one and two ranks; answers; refusals.

Run with pytest, in an environment with transformers.
"""

import gzip
import json
import unittest

import numpy as np
from safetensors.numpy import load_file

from chats import draw, gpt2, judged
from command import CommandTest

DATA, USAGE = 3, 2


class Chat(CommandTest):
    def write(self, name, rows):
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def test_samples_of_a_run_on_one_and_two_ranks(self):
        """Packed samples are those of transformers' ids, cut every seq_len, with the assistant's tokens as targets."""
        length = 48
        tokenizer, chats = gpt2("chatml"), draw(3, 40)
        tokenizer.save(str(self.folder / "tokenizer.json"))
        (self.folder / "chats").mkdir()
        for number in range(2):
            self.write(f"chats/{number}.jsonl", [{"messages": chat} for chat in chats[20 * number:20 * number + 20]])
        options = ("data.kind=chat", "data.paths=[\"chats/*.jsonl\"]", "data.tokenizer=tokenizer.json", "data.held_out_fraction=0",
                   f"model.vocab_size={tokenizer.get_vocab_size()}", f"model.seq_len={length}", "train.precision=fp64",
                   "train.global_batch_size=7", "train.micro_batch_size=2")
        losses = {}
        for ranks in (1, 2):
            self.succeeds(self.train(*options, "debug.dump_steps=[1]", ranks=ranks, flags=("--overwrite",)))
            losses[ranks] = self.losses()
        np.testing.assert_allclose(losses[1], losses[2], rtol=1e-12)
        known = self.cut([judged(tokenizer, "chatml", messages) for messages in chats], tokenizer.token_to_id("<|endoftext|>"), length)
        batch = load_file(self.run_folder / "dump/step-1/batch.safetensors")
        self.assertEqual(len(batch["input_ids"]), 7)
        for ids, targets, documents in zip(batch["input_ids"], batch["targets"], batch["document_ids"]):
            self.assertEqual((targets.tolist(), documents.tolist()), known[tuple(ids.tolist())])
        self.assertEqual(self.metrics()[0]["tokens"], int((batch["targets"] != -100).sum()))
        self.evaluates(chats)
        self.answers()
        self.refuses(options, chats)

    def cut(self, chats, separator, length):
        """{inputs: (targets, documents)}"""
        stream = [(id_, learned, number) for number, (ids, mask) in enumerate(chats)
                  for id_, learned in zip(ids + [separator], mask + [0])]
        known = {}
        for begin in range(0, len(stream) - 1, length):
            part = stream[begin:begin + length + 1]
            part += [(separator, 0, part[-1][2] + 1)] * (length + 1 - len(part))
            targets = [b[0] if b[1] else -100 for b in part[1:]]
            known[tuple(each[0] for each in part[:-1])] = (targets, [each[2] - part[0][2] for each in part[:-1]])
        return known

    def evaluates(self, chats):
        """On files that are compressed, as on those that are not."""
        (self.folder / "other").mkdir()
        self.write("other/a.jsonl", [{"messages": chat} for chat in chats[:9]])
        (self.folder / "other/b.jsonl.gz").write_bytes(gzip.compress((self.folder / "other/a.jsonl").read_bytes()))
        plain, packed = (json.loads(self.succeeds(self.troika("evaluate", "runs/small", "--data", f"other/{name}", "--json")).out)
                         for name in ("a.jsonl", "*.gz"))
        self.assertGreater(plain["loss"], 0)
        self.assertEqual(plain["loss"], packed["loss"])

    def answers(self):
        """As what the model says behind the rendered question, up to the token that ends a turn."""
        chosen = ("--temperature", 0, "--tokens", 12)
        found = self.succeeds(self.troika("generate", "runs/small", "--chat", "int x", "--template", "chatml", *chosen)).out
        rendered = "<|im_start|>user\nint x<|im_end|>\n<|im_start|>assistant\n"
        whole = self.succeeds(self.troika("generate", "runs/small", "--prompt", rendered, *chosen)).out
        self.assertTrue(whole.startswith("user\nint x\nassistant\n" + found.rstrip("\n")), (whole, found))
        done = self.troika("generate", "runs/small", "--chat", "int x\n" * 48, "--template", "chatml")
        self.assertEqual(done.status, DATA, str(done))
        self.assertRegex(done.err, r"the question has \d+ tokens with its template, the model sees 48")
        done = self.troika("generate", "runs/small", "--chat", "int x", "--template", "llama3")
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("has no token <|begin_of_text|>", done.err)

    def refuses(self, options, chats):
        for change, status, *needles in ((["data.pack=concatenate"], USAGE, 'write pack = "isolated"'),
                                         (["data.tokenizer=bytes"], USAGE, "no control tokens"),
                                         (["data.template=llama3"], DATA, "has no token <|begin_of_text|>")):
            done = self.train(*options, *change, flags=("--overwrite",))
            self.assertEqual(done.status, status, str(done))
            for needle in needles:
                self.assertIn(needle, done.err)
        self.write("chats/1.jsonl", [{"messages": chats[0]}, {"messages": [{"content": "a"}]}])
        done = self.train(*options, ranks=2, flags=("--overwrite",))
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("'chats/1.jsonl', line 2: message 0 has no role", done.err)


if __name__ == "__main__":
    unittest.main()
