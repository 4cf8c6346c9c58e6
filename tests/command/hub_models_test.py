"""Models that leave for the `transformers` package and come in from there, with the same logits.

Run with pytest, in an environment with PyTorch and transformers. LOGITS_TOOL says what a run's model makes of a text.
"""

import json
import os
import shutil
import struct
import subprocess

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

from command import CommandTest

USAGE, DATA, DIFFERS = 2, 3, 1
BOUND = 1e-5
TEXT = list(b"aa bb, c 17 dd")
SIZES = ("model.layers=2", "model.heads=4", "model.dim=24", "train.steps=4", "train.evaluate_every_steps=0")
GPT2 = ("model.norm=layernorm", "model.position=learned", "model.activation=gelu_tanh", "model.bias=true")
MODELS = {
    "llama": ("model.kv_heads=2", "model.head_dim=8", "model.rope_theta=500.0", "model.norm_eps=1e-4"),
    "llama with biases": ("model.bias=true", "model.tied_embeddings=false"),
    "qwen2": ("model.qkv_bias=true", "model.kv_heads=2", "model.rope_scaling=linear", "model.rope_factor=2.5"),
    "qwen3": ("model.qk_norm=true", "model.kv_heads=2", "model.head_dim=8", "model.tied_embeddings=false",
              "model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_len=16"),
    "gpt2": (*GPT2, "model.dropout=0.1"),
    "gpt2, untied": (*GPT2, "model.tied_embeddings=false", "model.activation=gelu"),
}
LLAMA_SIZES = {"vocab_size": 300, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
               "bos_token_id": None, "eos_token_id": None}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
GPT2_SIZES = {"vocab_size": 300, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32,
              "bos_token_id": None, "eos_token_id": None}

transformers.utils.logging.disable_progress_bar()


class HubModels(CommandTest):
    def expect_same_logits(self, run, folder, **load):
        model = AutoModelForCausalLM.from_pretrained(folder, **load).eval()
        with torch.no_grad():
            expected = model(torch.tensor([TEXT])).logits[0]
        file = self.folder / "logits.safetensors"
        subprocess.run([os.environ["LOGITS_TOOL"], run, file, *map(str, TEXT)], check=True)
        found = load_file(file)["logits"]
        self.assertEqual(found.shape, expected.shape)
        self.assertGreater(float(expected.abs().max()), 1e-2)
        self.assertLess(float((found - expected).abs().max()), BOUND)
        return model

    def trained(self, *sets, ranks=2):
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        self.succeeds(self.train(*SIZES, *sets, ranks=ranks))

    def export(self, *flags):
        return self.troika("checkpoint", "export", "runs/small", "out", *flags)

    def test_models_leave(self):
        for name, sets in MODELS.items():
            with self.subTest(name):
                self.trained("train.precision=fp32", *sets)
                self.succeeds(self.export())
                self.expect_same_logits(self.run_folder, self.folder / "out")
                tokenizer = AutoTokenizer.from_pretrained(self.folder / "out")
                text = " a\n\tz, é\u20ac"
                self.assertEqual(tokenizer(text)["input_ids"], list(text.encode()))
                self.assertEqual(tokenizer.decode(list(text.encode())), text)
                shutil.rmtree(self.folder / "out")

    def test_a_sentencepiece_tokenizer_leaves(self):
        (self.folder / "texts").mkdir()
        texts = ["the cat sat on the mat, and the cat ate 17 of 230 rats\n" * 8,
                 "  indented\n\n\tand with a tab;     five spaces  two \u00e9t\u00e9 na\u00efve \u20ac5\n" * 8,
                 "abaabaaabaaaab banana bananas anaconda aaaa aaaaaaa aaa\n" * 8,
                 "seldom: \u4e16\u754c \U0001f600 </s> <unk> <0x41> \u00a0."]
        for i, text in enumerate(texts):
            (self.folder / f"texts/{i}.txt").write_text(text)
        self.succeeds(self.troika("data", "prepare", "corpus", "texts/*.txt", "--train-tokenizer", "--vocab-size", 400))
        self.trained("data.kind=tokens", 'data.paths=["corpus/*.tokens"]', "data.tokenizer=corpus/tokenizer.model",
                     "data.held_out_fraction=0", "model.vocab_size=400", ranks=1)
        self.succeeds(self.export())
        self.assertTrue((self.folder / "out/tokenizer.model").is_file())
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "out")
        ours = documents_of(self.folder / "corpus")
        self.assertEqual(sorted(tokenizer(text)["input_ids"] for text in texts), sorted(ours))
        self.assertEqual(sorted(map(tokenizer.decode, ours)), sorted(texts))

    def test_a_run_folder_is_a_llama_as_it_is(self):
        self.trained("train.precision=fp32")
        self.expect_same_logits(self.run_folder, self.run_folder)
        # Beside other names, the package would take initial values for what it does not find.
        self.trained(*GPT2, ranks=1)
        self.assertFalse((self.run_folder / "config.json").exists())

    def test_a_large_model_leaves_in_several_files(self):
        self.trained("train.precision=fp32", *MODELS["gpt2"])
        done = self.succeeds(self.export("--max-file-size", "20K"))
        self.assertIn("model.safetensors.index.json, ", done.out)
        files = sorted((self.folder / "out").glob("model-*.safetensors"))
        self.assertGreater(len(files), 2)
        self.assertEqual(files[0].name, f"model-00001-of-{len(files):05}.safetensors")
        index = json.loads((self.folder / "out/model.safetensors.index.json").read_text())
        tensors = [tensor for file in files for tensor in load_file(file).values()]
        self.assertEqual(index["metadata"]["total_size"], sum(tensor.nbytes for tensor in tensors))
        self.expect_same_logits(self.run_folder, self.folder / "out")

    def test_a_checkpoint_leaves(self):
        """With the parameters before step 3, which is what is there after step 2; split over tensor ranks."""
        self.trained("train.precision=fp64", "checkpoint.every_steps=2", "debug.dump_steps=[3]", "parallel.tensor=2")
        self.succeeds(self.export("--step", 2))
        expected = load_file(self.run_folder / "dump/step-3/parameters.safetensors")
        found = load_file(self.folder / "out/model.safetensors")
        self.assertEqual(found.keys(), expected.keys())
        for name, values in expected.items():
            self.assertTrue(torch.equal(found[name], values), name)
        self.assertEqual(json.loads((self.folder / "out/config.json").read_text())["torch_dtype"], "float64")
        shutil.rmtree(self.folder / "out")
        self.fails_to(self.export("--step", 3), DATA, "no checkpoint of step 3 in ", "there are those of steps 4, 2")

    def fails_to(self, done, status, *needles):
        """As fails(), beside a run that is there."""
        self.assertEqual(done.status, status, str(done))
        for needle in needles:
            self.assertIn(needle, done.err)
        self.assertFalse((self.folder / "out").exists())

    def test_what_has_no_counterpart_is_refused(self):
        cases = ((("model.position=learned",), 'position = "learned" has no counterpart in Hugging Face\'s Llama',
                  'train with position = "rope"'),
                 (("model.activation=gelu",), 'activation = "gelu"', 'train with activation = "swiglu"'),
                 (("model.norm=layernorm",), 'position = "rope" has no counterpart in Hugging Face\'s GPT-2',
                  'train with position = "learned"'),
                 ((*GPT2, "model.bias=false"), "bias = false", "train with bias = true"),
                 ((*GPT2, "model.kv_heads=2"), "kv_heads = 2", "train with kv_heads = 4"),
                 ((*GPT2, "model.head_dim=8"), "head_dim = 8", "train with head_dim = dim / heads"))
        for sets, *needles in cases:
            with self.subTest(sets):
                self.trained("train.steps=1", *sets, ranks=1)
                self.fails_to(self.export(), USAGE, *needles)
        (self.folder / "out").mkdir()
        (self.folder / "out/mine").write_text("")
        self.trained("train.steps=1", ranks=1)
        done = self.export()
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn("'out' is there already", done.err)
        self.assertEqual([path.name for path in (self.folder / "out").iterdir()], ["mine"])

    def theirs(self, model, **save):
        """A model of the package's with random weights, none of them at its first value."""
        torch.manual_seed(1)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        shutil.rmtree(self.folder / "theirs", ignore_errors=True)
        model.save_pretrained(self.folder / "theirs", **save)
        return self.folder / "theirs"

    def imported(self):
        shutil.rmtree(self.folder / "ours", ignore_errors=True)
        return self.troika("checkpoint", "import", "theirs", "ours")

    def test_models_come_in(self):
        models = (LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, tie_word_embeddings=True)),
                  LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, head_dim=10, attention_bias=True, mlp_bias=True,
                                               rope_parameters={"rope_type": "default", "rope_theta": 300.0})),
                  LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, rope_parameters={**LLAMA3, "rope_theta": 500.0})),
                  MistralForCausalLM(MistralConfig(**LLAMA_SIZES, head_dim=8, sliding_window=32)),
                  Qwen2ForCausalLM(Qwen2Config(**LLAMA_SIZES, tie_word_embeddings=True)),
                  Qwen2ForCausalLM(Qwen2Config(**LLAMA_SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0})),
                  Qwen3ForCausalLM(Qwen3Config(**LLAMA_SIZES, head_dim=10, tie_word_embeddings=True)),
                  Qwen3ForCausalLM(Qwen3Config(**LLAMA_SIZES, head_dim=8, rope_parameters={**LLAMA3, "rope_theta": 1e6})),
                  GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)),
                  GPT2LMHeadModel(GPT2Config(**GPT2_SIZES, n_inner=30, activation_function="gelu",
                                             tie_word_embeddings=False)))
        for number, model in enumerate(models):
            save = {"max_shard_size": "20KB"} if number % 2 else {}
            with self.subTest(model.config):
                folder = self.theirs(model, **save)
                done = self.succeeds(self.imported())
                self.assertRegex(done.out, r"^ours: gpt, [0-9.]+ k parameters\n$")
                self.expect_same_logits(self.folder / "ours", folder)
                self.succeeds(self.troika("recipe", "check", "ours/recipe.toml"))
                # And back, to the bit.
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                self.succeeds(self.troika("checkpoint", "export", "ours", "out"))
                back = AutoModelForCausalLM.from_pretrained(self.folder / "out").state_dict()
                for name, values in AutoModelForCausalLM.from_pretrained(folder).state_dict().items():
                    self.assertTrue(torch.equal(back[name], values), name)
                # Its ids, beyond 255, are no bytes.
                self.assertFalse((self.folder / "out/tokenizer.json").exists())

    def test_positions_of_a_release_before_5_come_in(self):
        for rope in (LLAMA3, {"type": "linear", "factor": 4.0}):
            with self.subTest(rope):
                folder = self.theirs(LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES)))
                config = json.loads((folder / "config.json").read_text())
                del config["rope_parameters"]
                (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 700.0, "rope_scaling": rope}))
                self.succeeds(self.imported())
                self.expect_same_logits(self.folder / "ours", folder)

    def test_bf16_comes_in(self):
        """Its values to the bit, in fp32, in several files."""
        folder = self.theirs(Qwen3ForCausalLM(Qwen3Config(**LLAMA_SIZES, head_dim=8)).bfloat16(), max_shard_size="20KB")
        self.assertEqual(json.loads((folder / "config.json").read_text())["dtype"], "bfloat16")
        self.succeeds(self.imported())
        self.expect_same_logits(self.folder / "ours", folder, dtype=torch.float32)

    def test_a_vocabulary_may_be_padded(self):
        """Of more rows than the tokenizer has ids, as Qwen's: they are trained, leave again, and stand for no text."""
        folder = self.theirs(Qwen2ForCausalLM(Qwen2Config(**{**LLAMA_SIZES, "vocab_size": 384}, tie_word_embeddings=True)))
        self.pieces(folder, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))
        self.assertLess(len(AutoTokenizer.from_pretrained(folder)), 384)
        self.succeeds(self.imported())
        self.expect_same_logits(self.folder / "ours", folder)
        self.succeeds(self.troika("generate", "ours", "--prompt", "the", "--tokens", 40, "--temperature", 9))
        (self.folder / "cats.txt").write_text("the cat sat on the hat " * 40)
        sets = ('data.paths=["cats.txt"]', "data.held_out_fraction=0", "train.steps=1", "train.evaluate_every_steps=0",
                "observe.tensorboard=false", "train.global_batch_size=2", "parallel.tensor=2")
        self.succeeds(self.troika("train", "ours/recipe.toml", "--ranks", 2,
                                  *(word for one in sets for word in ("--set", one))))
        self.succeeds(self.troika("checkpoint", "export", "runs/ours-trained", "out"))
        self.assertEqual(load_file(self.folder / "out/model.safetensors")["model.embed_tokens.weight"].shape[0], 384)
        self.expect_same_logits(self.folder / "runs/ours-trained", self.folder / "out")

    def test_a_head_with_values_of_its_own_is_not_tied(self):
        """As transformers 5 has it, whatever config.json says; the same values again stay tied."""
        for model, embedding in ((LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, tie_word_embeddings=True)), "model.embed_tokens.weight"),
                                 (GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)), "transformer.wte.weight")):
            folder = self.theirs(model)
            tensors = load_file(folder / "model.safetensors")
            for head, tied in ((tensors[embedding].clone(), True), (torch.randn(300, 24), False)):
                with self.subTest(embedding, tied=tied):
                    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
                    done = self.succeeds(self.imported())
                    self.assertEqual("lm_head.weight has values of its own" in done.out, not tied)
                    self.assertIn(f"tied_embeddings = {str(tied).lower()}\n", (self.folder / "ours/recipe.toml").read_text())
                    self.expect_same_logits(self.folder / "ours", folder)

    def test_what_ends_a_text_leaves_as_it_came(self):
        ids = {"bos_token_id": 1, "eos_token_id": [0, 299], "pad_token_id": 2}
        folder = self.theirs(LlamaForCausalLM(LlamaConfig(**{**LLAMA_SIZES, **ids})))
        generation = {**json.loads((folder / "generation_config.json").read_text()), "temperature": 0.6, "do_sample": True}
        (folder / "generation_config.json").write_text(json.dumps(generation))

        def left(run):
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            self.succeeds(self.troika("checkpoint", "export", run, "out"))
            config = json.loads((self.folder / "out/config.json").read_text())
            generates = self.folder / "out/generation_config.json"
            return {name: config.get(name) for name in ids}, json.loads(generates.read_text()) if generates.exists() else None

        self.succeeds(self.imported())
        self.assertEqual(left("ours"), (ids, generation))
        # With its tokenizer; and of a run that started from it.
        self.pieces(folder, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))
        self.succeeds(self.imported())
        (self.folder / "cats.txt").write_text("the cat sat on the hat " * 40)
        sets = ("data.held_out_fraction=0", "train.steps=1", "train.evaluate_every_steps=0", "observe.tensorboard=false",
                "train.global_batch_size=2", 'data.paths=["cats.txt"]')
        self.succeeds(self.troika("train", "ours/recipe.toml", *(word for one in sets for word in ("--set", one))))
        self.assertEqual(left("ours"), (ids, generation))
        self.assertEqual(left("runs/ours-trained"), (ids, generation))
        # Another tokenizer has another end.
        sets = (*sets, "data.tokenizer=bytes", "name=bytes")
        self.succeeds(self.troika("train", "ours/recipe.toml", *(word for one in sets for word in ("--set", one))))
        self.assertEqual(left("runs/bytes"), ({"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}, None))

    def pieces(self, folder, pre_tokenizer):
        """A tokenizer of theirs, beside their model."""
        pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
        pieces.pre_tokenizer = pre_tokenizer
        pieces.decoder = tokenizers.decoders.ByteLevel()
        pieces.train_from_iterator(["the cat sat on the mat " * 9], tokenizers.trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<end>"], show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
        PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>").save_pretrained(folder)

    def test_a_tokenizer_comes_in_and_leaves(self):
        folder = self.theirs(GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)))
        self.pieces(folder, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))
        self.assertEqual(len(self.succeeds(self.imported()).out.splitlines()), 1)
        self.assertIn('tokenizer = "ours/tokenizer.json"', (self.folder / "ours/recipe.toml").read_text())
        (self.folder / "elsewhere").mkdir()
        self.assertTrue(self.succeeds(self.troika("generate", "../ours", "--prompt", "the", "--tokens", 3,
                                                  folder=self.folder / "elsewhere")).out.startswith("the"))
        text = "the cat sat on the hat "
        (self.folder / "cats.txt").write_text(text * 40)
        sets = ('data.paths=["cats.txt"]', "data.held_out_fraction=0", "train.steps=2", "train.evaluate_every_steps=0",
                "observe.tensorboard=false", "train.global_batch_size=2", "debug.dump_steps=[1]")
        self.succeeds(self.troika("train", "ours/recipe.toml", *(word for one in sets for word in ("--set", one))))
        theirs = AutoTokenizer.from_pretrained(folder)
        batch = load_file(self.folder / "runs/ours-trained/dump/step-1/batch.safetensors")["input_ids"]
        everything = theirs(text * 40)["input_ids"]
        for row in batch.tolist():
            self.assertIn(str(row)[1:-1], str(everything))
        self.assertTrue(self.succeeds(self.troika("generate", "runs/ours-trained", "--prompt", "the", "--tokens", 3)).out.startswith("the"))
        self.succeeds(self.troika("checkpoint", "export", "runs/ours-trained", "out"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((self.folder / "out" / name).read_bytes(), (folder / name).read_bytes(), name)
        self.assertEqual(json.loads((self.folder / "out/config.json").read_text())["eos_token_id"], theirs.eos_token_id)

    def test_a_tokenizer_that_troika_cannot_use_is_kept(self):
        folder = self.theirs(GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)))
        self.pieces(folder, tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.UnicodeScripts(), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]))
        done = self.succeeds(self.imported())
        self.assertEqual(done.out.splitlines()[1],
                         'tokenizer.json is kept for export; troika trains on ids: data.kind = "tokens"')
        sets = ("data.kind=random", "train.steps=1", "train.evaluate_every_steps=0", "observe.tensorboard=false",
                "train.global_batch_size=2")
        self.succeeds(self.troika("train", "ours/recipe.toml", *(word for one in sets for word in ("--set", one))))
        text = "the cat sat on the hat"
        ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        self.assertGreater(max(ids), 256)
        # Of the model as it came, of one that was trained from it, and of one that was trained from that.
        sets = (*sets, "name=third", "model.from=runs/ours-trained")
        self.succeeds(self.troika("train", "ours/recipe.toml", *(word for one in sets for word in ("--set", one))))
        for run in ("ours", "runs/ours-trained", "runs/third"):
            with self.subTest(run):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                done = self.succeeds(self.troika("checkpoint", "export", run, "out"))
                self.assertIn("tokenizer.json", done.out)
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    self.assertEqual((self.folder / "out" / name).read_bytes(), (folder / name).read_bytes(), name)
                self.assertEqual(AutoTokenizer.from_pretrained(self.folder / "out")(text)["input_ids"], ids)
        # Paths are as they were given: all of it may move at once, and be seen from elsewhere.
        self.assertIn('from = "ours/model.safetensors"', (self.folder / "ours/recipe.toml").read_text())
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        done = self.succeeds(self.troika("checkpoint", "export", "../runs/third", "out", folder=elsewhere))
        self.assertIn("tokenizer.json", done.out)
        shutil.move(self.folder / "ours", self.folder / "moved")
        done = self.troika("train", "moved/recipe.toml", *(word for one in sets[:5] for word in ("--set", one)),
                           "--set", "name=fourth")
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("where it has been moved: --set model.from=PATH", done.err)

    def test_what_has_come_in_is_trained_further(self):
        self.theirs(LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES)))
        self.succeeds(self.imported())
        sets = ("data.kind=random", "train.steps=2", "train.evaluate_every_steps=0", "train.global_batch_size=4",
                "train.micro_batch_size=2", "debug.dump_steps=[1]", "parallel.zero_stage=3", "observe.tensorboard=false")
        words = [word for one in sets for word in ("--set", one)]
        self.succeeds(self.troika("train", "ours/recipe.toml", "--ranks", 2, *words))
        start = load_file(self.folder / "runs/ours-trained/dump/step-1/parameters.safetensors")
        for name, values in load_file(self.folder / "ours/model.safetensors").items():
            self.assertTrue(torch.equal(start[name], values), name)

    def test_what_early_releases_have_beside_it_is_left_out(self):
        """Masks, and names without the first word, as the published GPT-2 has them; bf16."""
        folder = self.theirs(GPT2LMHeadModel(GPT2Config(**GPT2_SIZES)).bfloat16())
        tensors = {name.removeprefix("transformer."): values
                   for name, values in load_file(folder / "model.safetensors").items()}
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.succeeds(self.imported())
        self.assertEqual({values.dtype for values in load_file(self.folder / "ours/model.safetensors").values()},
                         {torch.float32})
        self.expect_same_logits(self.folder / "ours", folder, dtype=torch.float32)

    def refused(self, *needles):
        done = self.imported()
        self.assertEqual(done.status, DATA, str(done))
        self.assertEqual(done.out, "")
        for needle in needles:
            self.assertIn(needle, done.err)
        self.assertFalse((self.folder / "ours/recipe.toml").exists())

    def test_what_cannot_come_in_is_refused(self):
        folder = self.theirs(LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES)))
        config = json.loads((folder / "config.json").read_text())
        for change, *needles in (({"hidden_act": "gelu"}, 'hidden_act = "gelu" has no counterpart'),
                                 ({"rope_scaling": {"rope_type": "yarn"}}, 'rope_type = "yarn"', 'kind = "exported"'),
                                 ({"mlp_bias": True}, "mlp_bias = true"),
                                 ({"model_type": "mistral", "sliding_window": 16}, "sliding_window = 16",
                                  "max_position_embeddings = 16"),
                                 ({"model_type": "qwen3"}, "no tensor 'model.layers.0.self_attn.q_norm.weight'"),
                                 ({"model_type": "phi3"}, "model_type 'phi3' has no counterpart", 'kind = "exported"',
                                  "docs/how-to/from-python.md"),
                                 ({"model_type": None}, "model_type is missing"),
                                 ({"num_hidden_layers": "two"}, "num_hidden_layers is "),
                                 ({"num_hidden_layers": 2.5}, "num_hidden_layers is '2.5'"),
                                 ({"num_hidden_layers": -1}, "num_hidden_layers is '-1'"),
                                 ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
                                 ({"num_hidden_layers": 3}, "no tensor 'model.layers.2."),
                                 ({"num_hidden_layers": 10_000_000}, "too few for the layers that config.json has"),
                                 ({"num_hidden_layers": 1}, "tensor 'model.layers.1.", "has no counterpart"),
                                 ({"hidden_size": 28}, "is not what config.json says", " of F32, not ["),
                                 ({"vocab_size": 296}, "[300, 24] of F32, not [296, 24]")):
            with self.subTest(change):
                (folder / "config.json").write_text(json.dumps({**config, **change}))
                self.refused(*needles)
        (folder / "config.json").write_text("[")
        self.refused("config.json' is not JSON")
        (folder / "config.json").write_text(json.dumps(config))
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[:-4])
        self.refused("model.safetensors'")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refused("has neither model.safetensors nor model.safetensors.index.json", "save_pretrained()")
        names = list(load_file_of(whole, self.folder / "whole.safetensors"))
        for file in ("../whole.safetensors", "", "..", "/whole.safetensors", 7):
            index = {"weight_map": dict.fromkeys(names, file)}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            self.refused("which is no file beside it")
        (folder / "config.json").unlink()
        self.refused("config.json")
        for file, *needles in (("adapter_config.json", "has an adapter (LoRA) and no model", "merge_and_unload()"),
                               ("model_index.json", "has a pipeline of diffusers"), ("recipe.toml", "[model] from")):
            (folder / file).write_text("{}")
            self.refused(f"there is {file}, and no config.json", *needles)
            (folder / file).unlink()


def documents_of(folder):
    """The ids of each document in token shards (troika/data/sources/tokens/token_shard.h)."""
    found = []
    for path in folder.glob("*.tokens"):
        content = path.read_bytes()
        size, = struct.unpack_from("<I", content, 12)
        documents, tokens = struct.unpack_from("<QQ", content, 24)
        ids = struct.unpack_from(f"<{tokens}{'?BH?I'[size]}", content, 128)
        starts = struct.unpack_from(f"<{documents + 1}Q", content, 128 + -(-tokens * size // 8) * 8)
        found += [list(ids[begin:end]) for begin, end in zip(starts, starts[1:])]
    return found


def contents_of(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load_file_of(content, path):
    path.write_bytes(content)
    return load_file(path)


class Comparisons(CommandTest):
    def diff(self, *arguments):
        return self.troika("checkpoint", "diff", *arguments)

    def test_differences_are_named(self):
        self.succeeds(self.train("checkpoint.every_steps=2", "optimizer.kind=adamw", ranks=2))
        self.succeeds(self.train("name=other", "optimizer.kind=adamw", ranks=2))
        done = self.succeeds(self.diff("runs/small", "runs/other"))
        self.assertRegex(done.out, r"^compared: runs/small/model\.safetensors, runs/other/model\.safetensors\n"
                                   r"\d+ tensors the same, 0 different\n$")
        tensors = load_file(self.run_folder / "model.safetensors")
        tensors["model.norm.weight"][3] += 0.5
        del tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(3)
        tensors["mine"] = torch.zeros(3)
        save_file(tensors, self.folder / "changed.safetensors")
        done = self.diff("runs/small", "changed.safetensors")
        self.assertEqual(done.status, DIFFERS, str(done))
        lines = done.out.splitlines()
        self.assertRegex(lines[2], r"^model\.layers\.0\.mlp\.down_proj\.weight  \[32, 48\] and \[3\]$")
        self.assertRegex(lines[3], r"^model\.norm\.weight +0\.5 ")
        self.assertIn("only in runs/small: model.layers.0.mlp.up_proj.weight", lines)
        self.assertIn("only in changed.safetensors: mine", lines)
        checkpoint = "runs/small/checkpoints/step-00000002"
        done = self.diff("runs/small", checkpoint)
        self.assertEqual(done.status, DIFFERS, str(done))
        # The last one's model is that of the run; the optimiser's state is in the checkpoint alone.
        last = "runs/small/checkpoints/step-00000003"
        done = self.diff("runs/small", last)
        self.assertEqual(done.status, DIFFERS, str(done))
        self.assertIn(f"compared: runs/small/model.safetensors, {last}\n", done.out)
        self.assertRegex(done.out, rf"(?m)^only in {last}: \d+ tensors of the optimiser$")
        self.assertNotIn("exp_avg", done.out)
        done = self.succeeds(self.diff("runs/small", last, "--model"))
        self.assertRegex(done.out, r"\n\d+ tensors the same, 0 different\n$")
        self.assertEqual(self.diff("runs/small", checkpoint, "--model").status, DIFFERS)
        done = self.diff("runs/small", "nowhere")
        self.assertEqual(done.status, DATA, str(done))

    def test_a_checkpoint_in_other_files_goes_on(self):
        sets = ("checkpoint.every_steps=2", "train.steps=6", "optimizer.kind=adamw", "parallel.zero_stage=1")
        self.succeeds(self.train(*sets, ranks=2))
        whole = (self.run_folder / "model.safetensors").read_bytes()
        for ranks in (1, 3):
            with self.subTest(ranks):
                shutil.rmtree(self.folder / "other", ignore_errors=True)
                done = self.succeeds(self.troika("checkpoint", "reshard", "runs/small", "other/small", "--ranks", ranks,
                                                 "--step", 4))
                self.assertIn(f"2 files before, {ranks} now, all compared", done.out)
                step = "checkpoints/step-00000004"
                self.assertEqual(len(list((self.folder / "other/small" / step).glob("*.safetensors"))), ranks)
                self.succeeds(self.troika("checkpoint", "verify", "other/small"))
                self.succeeds(self.diff(f"runs/small/{step}", f"other/small/{step}"))
                done = self.succeeds(self.train("runs_dir=other", *sets, ranks=2))
                self.assertIn("going on from the checkpoint of step 4 of 6", done.err)
                self.assertEqual((self.folder / "other/small/model.safetensors").read_bytes(), whole)
                steps = [json.loads(line)["step"]
                         for line in (self.folder / "other/small/metrics.jsonl").read_text().splitlines()]
                self.assertEqual(steps, list(range(1, 7)))

    def test_a_checkpoint_in_other_files_is_a_run_of_its_own(self):
        self.succeeds(self.train("checkpoint.every_steps=2", "train.steps=6", ranks=2))
        before = contents_of(self.run_folder)
        done = self.succeeds(self.troika("checkpoint", "reshard", "runs/small", "other/packed/", "--ranks", 1, "--step", 4))
        self.assertIn("go on with: troika train other/packed/recipe.toml --ranks ", done.out)
        done = self.succeeds(self.troika("train", "other/packed/recipe.toml", "--set", "train.steps=8", "--resume"))
        self.assertIn("going on from the checkpoint of step 4 of 8", done.err)
        packed = self.folder / "other/packed"
        self.assertTrue((packed / "checkpoints/step-00000008/manifest.json").is_file())
        steps = [json.loads(line)["step"] for line in (packed / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, list(range(1, 9)))
        self.assertEqual(contents_of(self.run_folder), before)
        refused = self.troika("checkpoint", "reshard", "runs/small", "other/-odd", "--ranks", 1)
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("'-odd' cannot name a folder", refused.err)
        self.assertFalse((self.folder / "other/-odd").exists())

    def test_a_damaged_one_is_not_written_again(self):
        self.succeeds(self.train("checkpoint.every_steps=2", ranks=1))
        shard = next(self.run_folder.glob("checkpoints/step-00000003/*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        done = self.troika("checkpoint", "reshard", "runs/small", "other", "--ranks", 2)
        self.assertEqual(done.status, DATA, str(done))
        self.assertIn("is damaged: its SHA-256", done.err)
        self.assertFalse(list(self.folder.glob("other/checkpoints/*/manifest.json")))
