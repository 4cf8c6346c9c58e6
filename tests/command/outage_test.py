"""An object store that is away for a while, in each phase of a run: that costs time and nothing else.

Run with pytest, in an environment with pyarrow and moto.
"""

import os
import signal
import threading

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

import command
from bucket import VARIABLES, Bucket
from command import CommandTest, wait_until

DATA, STORAGE = 3, 7
STEPS = 30
GROUPS, ROWS = 60, 64
WARNING = "asking again for"
RECIPE = f"""
name = "small"
[model]
kind = "mlp"
hidden_dims = [8]
[data]
kind = "table"
held_out_fraction = 0
[data.columns]
a = {{ as = "tensor" }}
label = {{ as = "label" }}
[train]
steps = {STEPS}
global_batch_size = 64
micro_batch_size = 32
precision = "fp32"
evaluate_every_steps = 0
[optimizer]
kind = "adamw"
lr = 0.01
warmup_steps = 0
[checkpoint]
every_steps = 10
[observe]
tensorboard = false
[debug]
sample_seconds = 0.004
"""


class Lines:
    """What a process writes to stderr, while it runs."""

    def __init__(self, process):
        self.process, self.text = process, ""
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.popen.stderr:
            self.text += line

    def ends(self):
        status = self.process.popen.wait(command.PATIENCE_SECONDS)
        self.thread.join()
        return status


class StoredRuns(CommandTest):
    """Runs on data of a store that may be away."""

    def setUp(self):
        super().setUp()
        self.bucket = Bucket(self)
        self.outages = self.bucket.outages(self)
        self.place = self.bucket.place

    def url(self, below, port=None):
        return self.bucket.url(f"{self.place}/{below}", port or self.outages.port)

    def begin(self, *sets, flags=()):
        process = self.start(*command.train_arguments(sets), "--ranks", 2, *flags, **VARIABLES)
        return process, Lines(process)

    def steps(self):
        path = self.run_folder / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def trains(self, process):
        wait_until(lambda: process.popen.poll() is not None or self.steps() >= 2, "steps")

    def passes(self, mode, process, lines):
        """The store is away until the run says so."""
        self.outages.become(mode)
        before = lines.text.count(WARNING)
        wait_until(lambda: process.popen.poll() is not None or lines.text.count(WARNING) > before, f"the warning of an outage: {mode}")
        self.assertIsNone(process.popen.poll(), lines.text)
        self.outages.become("pass")

    def is_whole(self, lines, whole):
        self.assertEqual(lines.ends(), 0, lines.text)
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(), whole)

    def counted(self, ending):
        """The requests for files with this ending, from now on."""
        asked = []
        self.bucket.hook = lambda method, path: asked.append(method) if path.endswith(ending) else None
        return asked


class Outage(StoredRuns):
    def setUp(self):
        super().setUp()
        (self.folder / "recipe.toml").write_text(RECIPE)
        self.bucket.store.create_dir(f"{self.place}/data")
        self.write_table(seed=1)

    def write_table(self, seed):
        values = np.random.default_rng(seed).normal(size=(GROUPS * ROWS, 16)).astype(np.float32)
        table = pa.table({"a": list(values), "label": np.argmax(values[:, :4], axis=1)})
        with self.bucket.store.open_output_stream(f"{self.place}/data/a.parquet") as file:
            pq.write_table(table, file, row_group_size=ROWS, compression="none", use_dictionary=False)

    def sets(self, *more, port=None):
        return (f"data.files=['{self.url('data', port)}']", f"checkpoint.folder={self.url('kept', port)}", *more)

    def whole(self):
        self.succeeds(self.train(*self.sets("name=whole", port=self.bucket.port), ranks=2, **VARIABLES))
        return (self.folder / "runs/whole/model.safetensors").read_bytes()

    def test_in_the_start_and_while_it_trains(self):
        whole = self.whole()
        self.outages.become("refuse")
        process, lines = self.begin(*self.sets())
        self.passes("refuse", process, lines)
        self.trains(process)
        self.passes("stall", process, lines)
        self.is_whole(lines, whole)
        self.assertIn("step-00000030/manifest.json", self.kept())

    def test_bodies_that_are_cut_and_a_restart(self):
        whole = self.whole()
        process, lines = self.begin(*self.sets())
        self.trains(process)
        self.passes("cut 3000", process, lines)
        wait_until(lambda: process.popen.poll() is not None or "step-00000010/manifest.json" in self.kept(), "a checkpoint")
        self.assertIsNone(process.popen.poll(), lines.text)
        os.kill(process.pid, signal.SIGKILL)
        lines.ends()
        self.outages.become("refuse")
        process, lines = self.begin(*self.sets())
        self.passes("refuse", process, lines)
        self.is_whole(lines, whole)
        self.assertIn("going on from the checkpoint of step", lines.text)

    def kept(self):
        below = pyarrow.fs.FileSelector(f"{self.place}/kept/small", recursive=True, allow_not_found=True)
        return {one.path.removeprefix(f"{self.place}/kept/small/") for one in self.bucket.store.get_file_info(below) if one.is_file}

    def test_a_cache_reads_data_once(self):
        """What a second run of the host, and a second epoch, ask the store for; and a file that has changed."""
        asked = self.counted(".parquet")
        cache = ("data.cache=cache", "checkpoint.every_steps=0", "checkpoint.every_minutes=0", "debug.sample_seconds=0")

        def losses(name, *sets, steps=2 * GROUPS):
            asked.clear()
            self.succeeds(self.train(*self.sets(f"name={name}", f"train.steps={steps}", *sets), ranks=2, **VARIABLES))
            return self.losses(self.folder / "runs" / name), asked.count("GET")

        plain, gets_without = losses("plain")
        first, gets = losses("first", *cache)
        self.assertEqual(first, plain)
        again, gets_again = losses("again", *cache)
        self.assertEqual(again, plain)
        self.assertGreater(gets_without, 2 * GROUPS)  # each rank reads its row groups in each epoch
        self.assertEqual((gets > 0, gets_again), (True, 0))
        # A block that is damaged is read again.
        blocks = [path for path in (self.folder / "cache").rglob("*") if path.is_file()]
        content = bytearray(blocks[0].read_bytes())
        content[len(content) // 2] ^= 1
        blocks[0].write_bytes(content)
        damaged, gets = losses("damaged", *cache)
        self.assertEqual(damaged, plain)
        self.assertGreater(gets, 0)
        self.write_table(seed=2)
        changed, gets = losses("changed", *cache)
        self.assertNotEqual(changed, plain)
        self.assertGreater(gets, 0)

    def test_names_and_rights_that_are_wrong_fail_at_once(self):
        done = self.train(f"data.files=['{self.bucket.url('nothing/there', self.outages.port)}']", **VARIABLES)
        self.fails(done, DATA, "cannot list 's3://nothing/there'")
        done = self.train("data.files=['s3://bucket/data?endpoint_override=no-such-host.invalid&scheme=http&region=us-east-1']", **VARIABLES)
        self.fails(done, STORAGE, "cannot list 's3://bucket/data'")
        self.assertNotIn(WARNING, done.err)
        self.assertLess(done.seconds, 60)

    def test_what_is_away_for_longer_is_an_error_that_restarts(self):
        self.outages.become("refuse")
        done = self.train(*self.sets("storage.retry_seconds=2"), ranks=2, **VARIABLES)
        self.fails(done, STORAGE, "cannot list", "is the store reachable?")


class TokenShards(StoredRuns):
    """Shards, and the tokenizer that made them, in a store."""

    def setUp(self):
        super().setUp()
        self.succeeds(self.troika("data", "prepare", "corpus", "text/*.txt", "--train-tokenizer", "--vocab-size", 300))
        self.bucket.store.create_dir(f"{self.place}/corpus")
        for path in (self.folder / "corpus").iterdir():
            with self.bucket.store.open_output_stream(f"{self.place}/corpus/{path.name}") as file:
                file.write(path.read_bytes())

    def sets(self, paths, tokenizer, *more, steps=300):
        return ("data.kind=tokens", "model.vocab_size=300", f"data.paths=['{paths}']", f"data.tokenizer={tokenizer}",
                f"train.steps={steps}", "train.evaluate_every_steps=150", *more)

    def stored(self, *more, port=None, **options):
        return self.sets(self.url("corpus/*.tokens", port), self.url("corpus/tokenizer.model", port), *more, **options)

    def test_train_as_those_of_this_host_and_outlast_outages(self):
        here = self.sets("corpus/*.tokens", "corpus/tokenizer.model", "name=here")
        self.succeeds(self.train(*here, ranks=2))
        whole = (self.folder / "runs/here/model.safetensors").read_bytes()
        self.outages.become("refuse")
        process, lines = self.begin(*self.stored())
        self.passes("refuse", process, lines)
        self.trains(process)
        self.passes("stall", process, lines)
        self.is_whole(lines, whole)
        self.assertEqual((self.run_folder / "tokenizer/tokenizer.model").read_bytes(), (self.folder / "corpus/tokenizer.model").read_bytes())

    def test_are_read_once_into_a_cache(self):
        asked = self.counted(".tokens")
        gets, losses = [], []
        for name in ("first", "again"):
            asked.clear()
            self.succeeds(self.train(*self.stored("data.cache=cache", f"name={name}", port=self.bucket.port, steps=20), ranks=2, **VARIABLES))
            gets.append(asked.count("GET"))
            losses.append(self.losses(self.folder / "runs" / name))
        self.assertEqual(losses[0], losses[1])
        self.assertGreater(gets[0], 0)
        self.assertEqual(gets[1], 0)

    def test_that_are_none_are_named(self):
        done = self.train(*self.stored("data.paths=['" + self.url("corpus/*", self.bucket.port) + "']", port=self.bucket.port), **VARIABLES)
        self.fails(done, DATA, f"the token shard 's3://{self.place}/corpus/tokenizer.model' is not a token shard")
        done = self.train(*self.sets(self.url("corpus/*.tokens", self.bucket.port), "bytes"), **VARIABLES)
        self.fails(done, DATA, "was not made by data.tokenizer = 'bytes'", f's3://{self.place}/corpus/tokenizer.model", which made them')


if __name__ == "__main__":
    command.main()
