"""What the command says of recipes, data, model files and addresses that are wrong.

Each is one clear line with the culprit in it, a documented exit status, and nothing half-written.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import struct
import unittest

import command
from command import CommandTest

INTERNAL, USAGE, DATA, RENDEZVOUS = 1, 2, 3, 4


def listener():
    """A listening socket, and its port."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken, taken.getsockname()[1]


RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"


class Recipe(CommandTest):
    def check(self, *sets):
        words = [word for one in sets for word in ("--set", one)]
        return self.troika("recipe", "check", "recipe.toml", *words)

    def write(self, old, new):
        text = command.RECIPE
        self.assertIn(old, text)
        (self.folder / "recipe.toml").write_text(text.replace(old, new))

    def test_unknown_key_with_the_nearest(self):
        self.write("layers = 1", "layer = 1")
        self.fails(self.train(), USAGE, "recipe.toml:5: [model] unknown key 'layer'; did you mean 'layers'?")
        self.assertFalse((self.folder / "runs").exists())

    def test_unknown_table(self):
        self.write("[optimizer]", "[optimiser]")
        self.fails(self.check(), USAGE, "recipe.toml:", "optimiser", "optimizer")

    def test_wrong_type(self):
        self.write("layers = 1", 'layers = "one"')
        self.fails(self.check(), USAGE, "recipe.toml:5:", "layers", "integer")

    def test_out_of_range(self):
        self.write("heads = 2", "heads = 0")
        self.fails(self.check(), USAGE, "recipe.toml:7:", "heads", "1 to 10000000")

    def test_not_toml(self):
        self.write("[data]", "[data")
        self.fails(self.check(), USAGE, "recipe.toml:11")

    def test_an_override_is_named(self):
        self.fails(self.train("model.norm=layrnorm"), USAGE, "--set model.norm=layrnorm", "layernorm")

    def test_a_recipe_that_is_not_there(self):
        (self.folder / "recipe.toml").unlink()
        done = self.train()
        self.fails(done, done.status, "recipe.toml")
        self.assertIn(done.status, (USAGE, DATA))

    def test_a_batch_smaller_than_the_data_axis_with_the_nearest_that_works(self):
        done = self.train("train.global_batch_size=2", "train.micro_batch_size=1", ranks=3)
        self.fails(done, USAGE, "global_batch_size", "3")
        self.assertFalse((self.folder / "runs").exists())
        self.succeeds(self.check("train.global_batch_size=3", "train.micro_batch_size=1"))

    def test_what_does_not_exist_yet_is_refused_by_name(self):
        self.fails(self.train("parallel.context=2", ranks=2), USAGE, "parallel.context", "context = 1")
        self.fails(self.train("comm.engine=nccl", "train.device=cpu"), USAGE, "comm.engine", "nccl", 'engine = "auto"')
        self.fails(self.train("train.device=cuda:9", ranks=2), USAGE, "--set train.device=cuda:9: [train] device")
        # An engine that exchanges nothing must not pass for training.
        for done in (self.train("comm.engine=fake", ranks=2), self.check("comm.engine=fake")):
            self.fails(done, USAGE, "comm.engine=fake", 'engine = "fake"', 'engine = "auto"')

    def test_more_tensor_ranks_than_heads_with_the_most_that_fill_the_ranks(self):
        sets = ("model.heads=3", "model.dim=48", "parallel.tensor=4")
        self.fails(self.check(*sets), USAGE, "the model has 3 heads", "write tensor = 3 or less")
        refused = self.fails(self.train(*sets, ranks=4), USAGE, "the model has 3 heads", "write tensor = 2")
        self.assertNotIn("or less", refused.err)
        self.succeeds(self.troika("mesh", "recipe.toml", "--ranks", 4, "--set", "model.heads=3", "--set",
                                  "model.dim=48", "--set", "parallel.tensor=2"))

    def test_an_mlp_has_no_attention_to_run_again(self):
        done = self.troika("recipe", "check", RECIPES / "mlp.toml", "--set", "parallel.activation_checkpoint=selective")
        self.fails(done, USAGE, "parallel.activation_checkpoint=selective", "attention", '"full" or "none"')

    def test_no_paths(self):
        self.fails(self.train("data.paths=[]"), USAGE, "--set data.paths=[]", "paths is empty", "corpus/**/*.txt")
        self.assertIn("paths is empty", self.succeeds(self.check("data.paths=[]")).err)

    def test_one_path_where_a_list_belongs(self):
        self.fails(self.train("data.paths=nope"), USAGE, "expected list of strings, found string",
                   'hint: as in paths = ["nope"]')

    def test_zeros_that_divide(self):
        self.fails(self.check("optimizer.eps=0"), USAGE, "optimizer.eps=0", "more than 0")
        self.fails(self.check("model.norm_eps=0"), USAGE, "model.norm_eps=0", "more than 0")

    def test_a_model_beyond_all_memory(self):
        """The same line from a rank of our launcher and from one of another launcher."""
        sizes = [f"model.{key}={10**7}" for key in ("dim", "ffn_dim", "vocab_size")]
        taken, port = listener()
        taken.close()
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ours = self.fails(self.train(*sizes), USAGE, "troika: out of memory: rank 0 needs ", "on this host, which has ",
                          "hint: use a smaller model or seq_len")
        other = self.troika(*command.train_arguments(sizes), **alone)

        def lines(done):  # the address sanitizer adds one of its own
            return [line for line in done.error_lines if not line.startswith("==")]

        self.assertEqual(len(lines(ours)), 2, str(ours))
        self.assertEqual((other.status, lines(other)), (ours.status, lines(ours)))

    def test_the_recipes_of_the_tree_are_valid(self):
        names = sorted(RECIPES.glob("*.toml"))
        self.assertGreaterEqual(len(names), 4)
        for recipe in names:
            with self.subTest(recipe.name):
                done = self.succeeds(self.troika("recipe", "check", recipe))
                self.assertEqual((done.out, done.err), (f"{recipe}: valid recipe '{recipe.stem}'\n", ""))

    def test_the_gpt2_recipe_reads_what_prepare_writes(self):
        self.succeeds(self.troika("data", "prepare", "shards", "text/*.txt", "--train-tokenizer", "--vocab-size", 300))
        small = ("layers=1", "dim=16", "heads=2", "ffn_dim=16", "seq_len=16")
        sets = [f"model.{size}" for size in small] + ["train.steps=1", "train.global_batch_size=2",
                                                      "train.evaluate_every_steps=0"]
        words = [word for one in sets for word in ("--set", one)]
        self.succeeds(self.troika("train", RECIPES / "gpt2.toml", "--ranks", 1, *words))

    def test_unknown_flag_with_the_nearest(self):
        self.fails(self.troika("train", "recipe.toml", "--rank", "2"), USAGE, "'--rank'", "'--ranks'")

    def test_ranks_that_are_no_number(self):
        self.fails(self.train(ranks="x"), USAGE, "train: --ranks x is no whole number")
        self.fails(self.train(ranks=0), USAGE, "--ranks 0 is not between 1 and 65536", "leave --ranks out")

    def test_help_has_examples_of_what_was_asked_for(self):
        words = self.troika("--help").out.split("Subcommands:")[1].split("Examples:")[0]
        for name in re.findall(r"^  (\w+)", words, re.MULTILINE):
            done = self.succeeds(self.troika(name, "--help"))
            examples = done.out.split("Example", 1)[1]
            self.assertIn(f"troika {name} ", examples, str(done))
            if name != "train":
                self.assertNotIn("troika train run.toml --set", examples, str(done))

    def test_no_subcommand(self):
        self.fails(self.troika(), USAGE, "train", "generate")


class Data(CommandTest):
    def test_missing(self):
        self.fails(self.train('data.paths=["nowhere/*.txt"]'), DATA, "'nowhere/*.txt'")
        self.fails(self.train('data.paths=["nowhere.txt"]', ranks=2), DATA, "'nowhere.txt' does not exist")
        # A run that has not begun may be replaced.
        self.succeeds(self.train())

    def test_empty(self):
        (self.folder / "empty.txt").touch()
        self.fails(self.train('data.paths=["empty.txt"]'), DATA, "'empty.txt' is empty")

    def test_a_folder(self):
        self.fails(self.train('data.paths=["text"]'), DATA, "'text' is a folder", "text/**")

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_unreadable(self):
        (self.folder / "secret.txt").write_text("secret")
        (self.folder / "secret.txt").chmod(0)
        self.fails(self.train('data.paths=["secret.txt"]'), DATA, "secret.txt", "ermission")

    def test_a_pipe(self):
        os.mkfifo(self.folder / "pipe")
        self.fails(self.train('data.paths=["pipe"]'), DATA, "pipe", "not a regular file")

    def test_held_out_takes_everything(self):
        done = self.train("data.held_out_fraction=0.999999")
        self.fails(done, DATA, "held-out split takes all its 12 documents")

    def test_prepare_leaves_nothing_behind(self):
        self.fails(self.troika("data", "prepare", "corpus", "nowhere/*"), DATA, "'nowhere/*'")
        self.assertFalse((self.folder / "corpus").exists())
        (self.folder / "corpus").mkdir()
        (self.folder / "corpus" / "mine").touch()
        self.fails(self.troika("data", "prepare", "corpus", "text/*"), USAGE, "'corpus' is there already")


    def test_prepare_tells_of_bytes_that_are_no_text(self):
        (self.folder / "latin.txt").write_bytes("déjà vu\n".encode("latin-1") * 20)
        done = self.troika("data", "prepare", "corpus", "text/*.txt", "latin.txt", "--train-tokenizer", "--vocab-size", 300)
        self.succeeds(done)
        self.assertIn("warning: ", done.err)
        self.assertIn("latin.txt", done.err)


class TokenShard(CommandTest):
    SETS = ("data.kind=tokens", 'data.paths=["corpus/*.tokens"]')

    def setUp(self):
        super().setUp()
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt"))
        self.shard = self.folder / "corpus" / "shard-00000.tokens"
        self.content = self.shard.read_bytes()

    def refused(self, content, *needles):
        self.shard.write_bytes(content)
        self.fails(self.train(*self.SETS), DATA, "'corpus/shard-00000.tokens'", *needles)

    def test_truncated(self):
        self.refused(self.content[:-8], "truncated")
        self.refused(self.content[:60], "truncated")

    def test_too_long(self):
        self.refused(self.content + bytes(8), "8")

    def test_wrong_magic_number(self):
        self.refused(b"TROIKAXX" + self.content[8:], "not a token shard")

    def test_damaged_header(self):
        self.refused(self.content[:33] + b"\x7f" + self.content[34:], "checksum")

    def test_a_token_beyond_the_vocabulary(self):
        self.fails(self.train(*self.SETS, "model.vocab_size=50"), DATA,
                   "shard-00000.tokens", "token id", "model.vocab_size is 50")

    def test_a_token_that_the_header_does_not_tell_of(self):
        content = bytearray(self.content)
        content[128:129 + 3000] = b"\xff" * 3001  # above the largest id of the header
        self.shard.write_bytes(bytes(content))
        self.fails(self.train(*self.SETS, "model.vocab_size=200"), DATA,
                   "shard-00000.tokens", "token id 255", "model.vocab_size is 200")


    def test_another_tokenizer_than_made_them(self):
        self.succeeds(self.troika("data", "prepare", "pieces", "text/*.txt", "--train-tokenizer", "--vocab-size", 300))
        sets = ("data.kind=tokens", 'data.paths=["pieces/*.tokens"]', "model.vocab_size=300")
        self.fails(self.train(*sets), DATA, "'pieces/shard-00000.tokens' was not made by data.tokenizer = 'bytes'",
                   'write tokenizer = "pieces/tokenizer.model"')
        self.succeeds(self.train(*sets, "data.tokenizer=pieces/tokenizer.model"))


class ModelFile(unittest.TestCase):
    """`generate` with a model.safetensors that is damaged, or made to hurt. One run serves all."""

    @classmethod
    def setUpClass(cls):
        class Once(CommandTest):
            def runTest(self):
                pass

        cls.once = Once()
        cls.once.setUp()
        cls.addClassCleanup(cls.once.doCleanups)
        cls.once.succeeds(cls.once.train("train.steps=1"))
        cls.model = cls.once.run_folder / "model.safetensors"
        cls.content = cls.model.read_bytes()
        length = struct.unpack("<Q", cls.content[:8])[0]
        cls.header, cls.data = json.loads(cls.content[8:8 + length]), cls.content[8 + length:]
        cls.weight = "model.layers.0.mlp.up_proj.weight"

    def refused(self, content, *needles):
        self.model.write_bytes(content)
        done = self.once.troika("generate", "runs/small", "--tokens", "1")
        self.assertEqual(done.status, DATA, str(done))
        self.assertEqual(done.out, "", str(done))
        self.assertLessEqual(len(done.error_lines), 2, str(done))
        self.assertLess(len(done.err), 1000, str(done))
        for needle in ("model.safetensors", *needles):
            self.assertIn(needle, done.err, str(done))

    def refused_header(self, change, *needles):
        header = json.loads(json.dumps(self.header))
        change(header)
        text = json.dumps(header).encode()
        self.refused(struct.pack("<Q", len(text)) + text + self.data, *needles)

    def test_whole_it_is_taken(self):
        self.model.write_bytes(self.content)
        self.once.succeeds(self.once.troika("generate", "runs/small", "--tokens", "1"))

    def test_truncated(self):
        self.refused(self.content[:-4], "reach beyond", "truncated file?")
        self.refused(self.content[:100], "truncated")
        self.refused(self.content[:5])
        self.refused(b"", "empty")

    def test_a_length_that_overflows(self):
        self.refused(b"\xff" * 8 + self.content[8:], "18446744073709551615")

    def test_offsets(self):
        def set_offsets(begin, end):
            return lambda header: header[self.weight].update(data_offsets=[begin, end])

        begin, end = self.header[self.weight]["data_offsets"]
        self.refused_header(set_offsets(begin - 64, end - 64), self.weight)  # overlap with its neighbour
        self.refused_header(set_offsets(2**63, 2**63 + end - begin), self.weight)
        self.refused_header(set_offsets(end, begin), self.weight)

    def test_wrong_dtype(self):
        self.refused_header(lambda header: header[self.weight].update(dtype="F64"), self.weight)
        self.refused_header(lambda header: header[self.weight].update(dtype="PICKLE"), self.weight, "PICKLE")
        # As many bytes as it should have, but no parameters.
        self.refused_header(lambda header: header[self.weight].update(dtype="I32"), self.weight, "I32", "F32")

    def test_a_tensor_too_many(self):
        def add(header):
            header["surplus"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(self.data)] * 2}

        self.refused_header(add, "no tensor 'surplus'")

    def test_a_shape_that_overflows(self):
        self.refused_header(lambda header: header[self.weight].update(shape=[2**62, 2**62]), self.weight)

    def test_deep_and_invalid_json(self):
        for text in (b'{"a":' * 100000, b"[" * 100000, b'{"a": nul}', b"{" + b"\xff" * 16):
            self.refused(struct.pack("<Q", len(text)) + text)

    def test_a_tensor_of_another_shape_or_name(self):
        shape = self.header[self.weight]["shape"]
        self.refused_header(lambda header: header[self.weight].update(shape=shape[::-1]), self.weight, "48, 32")
        self.refused_header(lambda header: header.update({self.weight + "s": header.pop(self.weight)}),
                            "no tensor", self.weight)

    def test_no_run_at_all(self):
        done = self.once.troika("generate", "text", "--tokens", "1")
        self.assertEqual((done.status, done.out), (DATA, ""), str(done))
        self.assertIn("'text' is no run folder", done.err)

    def test_a_run_without_a_model(self):
        shutil.copytree(self.once.run_folder, self.once.folder / "runs" / "unfinished")
        (self.once.folder / "runs" / "unfinished" / "model.safetensors").unlink()
        done = self.once.troika("generate", "runs/unfinished", "--tokens", "1")
        self.assertEqual((done.status, done.out), (DATA, ""), str(done))
        self.assertIn("the run in 'runs/unfinished' has no model yet", done.err)
        self.assertIn("runs/unfinished/model.safetensors", done.err)
        self.assertIn("saves its model when it ends", done.err)


class Addresses(CommandTest):
    def test_prometheus_port_in_use(self):
        taken, port = listener()
        with taken:
            done = self.train(f"observe.prometheus_port={port}", ranks=2)
        self.fails(done, USAGE, f"{port}", "prometheus", "in use")

    def test_rendezvous_port_in_use(self):
        taken, port = listener()
        with taken:
            done = self.troika("train", "recipe.toml", "--nodes", 2, "--node-rank", 0, "--ranks-per-node", 1,
                               "--rendezvous", f"127.0.0.1:{port}")
        self.fails(done, RENDEZVOUS, f"port {port} is in use")

    def test_an_unreachable_rendezvous_is_named_with_the_time_waited(self):
        taken, port = listener()
        taken.close()  # no process listens there now
        done = self.troika("train", "recipe.toml", "--nodes", 2, "--node-rank", 1, "--ranks-per-node", 1,
                           "--rendezvous", f"127.0.0.1:{port}", "--set", "comm.rendezvous_timeout_seconds=2")
        self.fails(done, RENDEZVOUS, f"127.0.0.1:{port}", "after 2.0 s")
        self.assertLess(done.seconds, 20)

    def test_a_rendezvous_that_is_no_address(self):
        done = self.troika("train", "recipe.toml", "--nodes", 2, "--node-rank", 1, "--ranks-per-node", 1,
                           "--rendezvous", "127.0.0.1:many")
        self.fails(done, USAGE, "--rendezvous: 'many' is not a port")


if __name__ == "__main__":
    command.main()
