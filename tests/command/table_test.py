"""Tables: what `kind = "table"` trains on, as pyarrow has written it.

Run with pytest, in an environment with pyarrow, moto and safetensors.
"""

import datetime
import decimal
import http.server
import json
import socket
import threading
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from bucket import VARIABLES, Bucket
from command import CommandTest

USAGE, DATA, STORAGE = 2, 3, 7
SILENCE_SECONDS = 40  # each request is waited for three seconds

RECIPE = """
name = "small"
[model]
kind = "mlp"
hidden_dims = [8]
[data]
kind = "table"
files = ["data/*.parquet"]
held_out_fraction = 0.2
[data.columns]
"*" = { as = "number" }
label = { as = "label" }
[train]
steps = 6
global_batch_size = 16
micro_batch_size = 5
precision = "fp64"
deterministic = true
evaluate_every_steps = 3
[optimizer]
kind = "sgd"
lr = 0.1
warmup_steps = 0
[observe]
tensorboard = false
"""


def example(rows=200, seed=1):
    """Three features and the class that they give."""
    features = np.random.default_rng(seed).normal(size=(rows, 3))
    labels = np.argmax(features, axis=1)
    return {"a": features[:, 0], "b": features[:, 1].astype(np.float32), "c": features[:, 2], "label": labels}


class TableTest(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        (self.folder / "recipe.toml").write_text(RECIPE)

    def write(self, columns, name="a.parquet", **options):
        pq.write_table(pa.table(columns), self.folder / "data" / name, **options)

    def batch(self, step=1):
        return load_file(self.run_folder / "dump" / f"step-{step}" / "batch.safetensors")

    def rows_of_run(self, *sets, steps):
        """What the steps of a run were made of: features and targets, in order."""
        dumps = ",".join(map(str, range(1, steps + 1)))
        self.succeeds(self.train(f"train.steps={steps}", f"debug.dump_steps=[{dumps}]", *sets, flags=("--overwrite",)))
        batches = [self.batch(step) for step in range(1, steps + 1)]
        return np.concatenate([b["features"] for b in batches]), np.concatenate([b["targets"] for b in batches])


class Training(TableTest):
    def test_one_and_two_ranks_train_alike(self):
        for part in range(3):
            self.write(example(70, seed=part), f"{part}.parquet", row_group_size=30)
        losses = {}
        for ranks in (1, 2):
            self.succeeds(self.train("train.steps=60", "optimizer.lr=0.5", "debug.dump_steps=[1]", ranks=ranks, flags=("--overwrite",)))
            losses[ranks] = self.losses()
        np.testing.assert_allclose(losses[1], losses[2], rtol=1e-12)
        self.assertLess(np.mean(losses[1][-10:]), np.mean(losses[1][:10]) - 0.2)
        recipe = (self.run_folder / "recipe.toml").read_text()
        self.assertIn("input_dim = 3\n", recipe)
        self.assertIn("output_dim = 3\n", recipe)
        columns = json.loads((self.run_folder / "data.json").read_text())["columns"]
        self.assertEqual([(c["name"], c["offset"]) for c in columns], [("a", 0), ("b", 1), ("c", 2), ("label", 0)])

    def test_each_row_comes_once_an_epoch(self):
        table = {"id": np.arange(48.0), "label": np.arange(48) % 2}
        self.write(table, row_group_size=10)
        features, targets = self.rows_of_run("data.held_out_fraction=0", "train.evaluate_every_steps=0", steps=6)
        for epoch in (features[:48], features[48:]):
            self.assertEqual(sorted(epoch[:, 0]), list(range(48)))
        self.assertNotEqual(list(features[:48, 0]), list(features[48:, 0]))
        np.testing.assert_array_equal(targets, features[:, 0].astype(int) % 2)

    def test_the_held_out_side_is_left_out_with_any_seed(self):
        self.write({"id": np.arange(400.0), "label": np.arange(400) % 2})
        steps = -(-400 // 16)
        seen = [set(self.rows_of_run(f"seed={seed}", steps=steps)[0][:, 0]) for seed in (1, 2)]
        self.assertEqual(seen[0], seen[1])
        self.assertTrue(300 < len(seen[0]) < 340, len(seen[0]))


class Formats(TableTest):
    """Each holds the same rows; a run on any of them is the same."""

    def files(self):
        """{file name: what writes the table there}"""
        def in_stream(table, path):
            with pa.ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table)

        def in_file(table, path, **options):
            with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
                file.write_table(table, max_chunksize=70)

        def compressed(codec):
            def write(table, path):
                with pa.output_stream(path, compression=codec) as stream:
                    csv.write_csv(table, stream)
            return write

        return {"a.parquet": lambda table, path: pq.write_table(table, path, row_group_size=70),
                "a.arrow": in_file, "b.feather": lambda table, path: in_file(table, path, compression="zstd"),
                "a.arrows": in_stream, "a.csv": csv.write_csv, "a.csv.gz": compressed("gzip"),
                "a.csv.zst": compressed("zstd"),
                "a.tsv": lambda table, path: csv.write_csv(table, path, csv.WriteOptions(delimiter="\t"))}

    def test_all_formats_hold_the_same(self):
        table = pa.table({"a": np.round(np.random.default_rng(1).normal(size=200), 6), "b": np.arange(200) % 7,
                          "label": [("red", "green")[i % 2] for i in range(200)]})
        seen = {}
        for name, write in self.files().items():
            write(table, str(self.folder / "data" / name))
            features, targets = self.rows_of_run(f"data.files=['data/{name}']", "data.held_out_fraction=0",
                                                 "train.evaluate_every_steps=0", "train.global_batch_size=200", steps=1)
            seen[name] = sorted(map(tuple, np.concatenate([features, targets[:, None]], axis=1)))
        expected = sorted(zip(table["a"].to_numpy().astype(np.float32), map(float, table["b"].to_numpy()),
                              [1.0 if word == "red" else 0.0 for word in table["label"].to_pylist()]))
        for name, rows in seen.items():
            np.testing.assert_allclose(rows, expected, err_msg=name)

    def test_types_of_parquet(self):
        rows = 30
        table = pa.table({
            "a": pa.array(range(rows), pa.int8()), "b": pa.array(range(rows), pa.uint64()), "c": pa.array(range(rows), pa.float16()),
            "d": pa.array([decimal.Decimal(i) / 4 for i in range(rows)], pa.decimal128(9, 2)), "e": pa.array([i % 2 == 0 for i in range(rows)]),
            "f": pa.array([datetime.date(1970, 1, 1 + i) for i in range(rows)]), "g": pa.array(range(rows), pa.timestamp("ms")),
            "word": pa.array([["b", "a"][i % 2] for i in range(rows)]).dictionary_encode(), "label": pa.array(range(rows), pa.float32())})
        pq.write_table(table, self.folder / "data" / "a.parquet")
        columns = 'data.columns={"*"={as="number"},word={as="category"},label={as="label"}}'
        features, targets = self.rows_of_run(columns, "data.held_out_fraction=0", "model.loss=mean_square", "train.global_batch_size=30",
                                             "train.evaluate_every_steps=0", "model.output_dim=1", steps=1)
        for row, target in zip(features, targets[:, 0]):
            i = int(target)
            self.assertEqual(list(row), [i, i, i, i / 4, i % 2 == 0, i, i, i % 2 == 1, i % 2 == 0])

    def test_lists_are_tensors(self):
        lists = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
        for name, kind in (("fixed", pa.list_(pa.float32(), 4)), ("plain", pa.list_(pa.float64()))):
            self.write({"x": pa.array(lists.tolist(), kind), "label": np.arange(60) % 3}, f"{name}.parquet")
            features, _ = self.rows_of_run(f"data.files=['data/{name}.parquet']", 'data.columns={x={as="tensor"},label={as="label"}}',
                                           "data.held_out_fraction=0", "train.evaluate_every_steps=0", "train.global_batch_size=60", steps=1)
            np.testing.assert_array_equal(sorted(map(tuple, features)), sorted(map(tuple, lists)))

    def test_lists_beside_numbers(self):
        """Spark's lists do not say that they have one length."""
        lists = np.random.default_rng(1).normal(size=(60, 4)).round(3)
        self.write({"a": np.arange(60.0), "x": pa.array(lists.tolist(), pa.list_(pa.float64())), "label": np.arange(60) % 3})
        features, _ = self.rows_of_run('data.columns={a={as="number"},x={as="tensor"},label={as="label"}}', "data.held_out_fraction=0",
                                       "train.evaluate_every_steps=0", "train.global_batch_size=60", steps=1)
        features = features[np.argsort(features[:, 0])]
        np.testing.assert_allclose(features[:, 1:], lists, rtol=1e-6)

    def test_lists_of_two_lengths(self):
        self.write({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]})
        self.fails(self.train('data.columns={x={as="tensor"},label={as="label"}}', "data.held_out_fraction=0",
                              "train.evaluate_every_steps=0"), DATA, "the column 'x' is a list of 1 number; expected 2")


class ObjectStore(TableTest):
    def setUp(self):
        super().setUp()
        self.bucket = Bucket(self)
        for part in range(2):
            table = pa.table({"id": np.arange(24.0) + 24 * part, "label": np.arange(24) % 2})
            pq.write_table(table, f"bucket/some/year={2024 + part}/part-{part}.parquet", filesystem=self.bucket.store,
                           row_group_size=10)
        with self.bucket.store.open_output_stream("bucket/some/_SUCCESS") as file:
            file.write(b"done")

    def train_from(self, path, *sets, port=None, **variables):
        return self.train(f"data.files=['{self.bucket.url(path, port)}']", "data.held_out_fraction=0", "train.evaluate_every_steps=0",
                          *sets, **{**VARIABLES, **variables})

    def test_a_bucket_is_read_like_a_folder(self):
        for path in ("bucket/some", "bucket/**/part-*.parquet", "bucket/some/*/*"):
            done = self.train_from(path, "train.steps=3", "debug.dump_steps=[1,2,3]", f"name={len(path)}", ranks=2)
            self.succeeds(done)
            run = self.folder / "runs" / str(len(path))
            ids = np.concatenate([load_file(run / "dump" / f"step-{step}" / "batch.safetensors")["features"][:, 0] for step in (1, 2, 3)])
            self.assertEqual(sorted(ids), list(range(48)))

    def test_a_file_that_two_patterns_find_counts_once(self):
        paths = ",".join(f"'{self.bucket.url(path)}'" for path in ("bucket/some", "bucket/**/part-0.parquet"))
        self.succeeds(self.train(f"data.files=[{paths}]", "data.held_out_fraction=0", "train.evaluate_every_steps=0", "train.steps=3",
                                 "debug.dump_steps=[1,2,3]", **VARIABLES))
        ids = np.concatenate([self.batch(step)["features"][:, 0] for step in (1, 2, 3)])
        self.assertEqual(sorted(ids), list(range(48)))

    def test_what_is_not_there(self):
        self.fails(self.train_from("nothing/some"), DATA, "cannot list 's3://nothing/some", "there is no such bucket, folder or file")
        self.fails(self.train_from("bucket/*.csv"), DATA, "no file matches 's3://bucket/*.csv")

    def test_a_store_that_cannot_be_opened(self):
        """What S3 has started ends before its library does."""
        done = self.train("data.files=['s3://bucket/some?nonsense=1']", **VARIABLES)
        self.fails(done, DATA, "cannot list 's3://bucket/some'")
        self.assertNotIn("FinalizeS3", done.err)

    def test_a_store_that_does_not_answer(self):
        """Nobody listens, or nobody answers."""
        for listens in (False, True):
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                if listens:
                    silent.listen()
                done = self.train_from("bucket/some", "storage.retry_seconds=2", port=silent.getsockname()[1])
            self.fails(done, STORAGE, "cannot list 's3://bucket/some", "is the store reachable?")
            self.assertLess(done.seconds, SILENCE_SECONDS)

    def test_a_store_that_refuses(self):
        for status, code, hint in ((403, DATA, "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"),
                                   (503, STORAGE, "the store has failed, or is busy")):
            class Refusing(http.server.BaseHTTPRequestHandler):
                def do_HEAD(self):
                    self.send_response(status)
                    self.end_headers()

                def log_message(self, *_):
                    pass

            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
                thread = threading.Thread(target=server.serve_forever)
                thread.start()
                done = self.train_from("bucket/some", "storage.retry_seconds=2", port=server.server_address[1])
                server.shutdown()
                thread.join()
            self.fails(done, code, "cannot list 's3://bucket/some", hint)
            self.assertLess(done.seconds, SILENCE_SECONDS)


class Sides(TableTest):
    def test_what_was_learned_is_kept_with_the_run(self):
        self.write({"a": [1.0, None, 3.0, 8.0], "word": ["x", "y", "x", "z"], "label": [True, False, True, False]})
        self.succeeds(self.train('data.columns={a={as="number",normalise="standard",missing="mean"},word={as="category"},'
                                 'label={as="label"}}', "data.held_out_fraction=0", "train.evaluate_every_steps=0"))
        a, word, label = json.loads((self.run_folder / "data.json").read_text())["columns"]
        self.assertEqual((a["shift"], a["mean"], a["missing"]), (4.0, 4.0, "mean"))
        self.assertAlmostEqual(1 / a["scale"], np.std([1, 3, 8]))
        self.assertEqual((word["words"], word["offset"], word["width"]), (["x", "y", "z"], 1, 3))
        self.assertEqual((label["words"], label["classes"]), (["false", "true"], 2))

    def test_rows_are_filtered_and_read_by_partition(self):
        for year in (2023, 2024, 2025):
            folder = self.folder / "data" / "events" / f"year={year}" / "land=D%45"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"a": np.arange(20) + year * 100.0, "label": np.arange(20) % 2}), folder / "part-0.snappy.parquet")
        (self.folder / "data" / "events" / "_SUCCESS").write_text("")
        columns = 'data.columns={"*"={as="number"},land={as="category"},label={as="label"}}'
        features, _ = self.rows_of_run("data.files=['data/events']", 'data.filter=[["year",">=",2024],["a","<",202510]]', columns,
                                       "data.held_out_fraction=0", "train.evaluate_every_steps=0", "train.global_batch_size=30", steps=1)
        self.assertEqual(sorted(features[:, 0]), [*range(202400, 202420), *range(202500, 202510)])
        self.assertEqual(set(features[:, 1]), {1.0})


class Mistakes(TableTest):
    def test_a_column_that_is_not_there(self):
        self.write(example())
        self.fails(self.train('data.columns={labl={as="label"},"*"={as="number"}}'), DATA,
                   "there is no column 'labl' in 'data/a.parquet'; did you mean 'label'?", "its columns are a, b, c, label")

    def test_no_file(self):
        self.fails(self.train(), DATA, "no file matches 'data/*.parquet'")

    def test_a_truncated_file(self):
        self.write(example())
        path = self.folder / "data" / "a.parquet"
        whole = path.read_bytes()
        for size in (len(whole) - 100, len(whole) // 2, 8, 3):
            path.write_bytes(whole[:size])
            self.fails(self.train(), DATA, "cannot read the table 'data/a.parquet'")

    def test_a_damaged_file(self):
        """Bytes turned at random end in an error that names the file, or change nothing that is used."""
        self.write(example(), compression="NONE")
        path = self.folder / "data" / "a.parquet"
        whole = path.read_bytes()
        random = np.random.default_rng(1)
        for _ in range(6):
            damaged = bytearray(whole)
            for place in random.integers(4, len(whole) - 8, size=20):
                damaged[place] ^= int(random.integers(1, 256))
            path.write_bytes(damaged)
            done = self.train("train.steps=2", "model.output_dim=3", flags=("--overwrite",))
            self.assertIn(done.status, (0, DATA, 6), str(done))  # or the numbers lead to no finite loss
            if done.status == DATA:
                self.assertIn("data/a.parquet", done.err)

    def test_a_filter_that_is_none(self):
        self.write(example())
        self.fails(self.train('data.filter=[["a", "~", 1]]'), USAGE, "filter: '~' is not one of =, ==, !=")
        self.fails(self.train('data.filter=[["a", 1]]'), USAGE, "expected list of [NAME, RELATION, VALUE]")

    def test_a_build_without_arrow(self):
        self.write(example())
        plugins = self.folder / "plugins"
        plugins.mkdir()
        (plugins / "libtroika_arrow.so").write_text("no library")
        self.fails(self.train(TROIKA_PLUGINS=plugins), USAGE, "cannot load", "libtroika_arrow.so")

    def test_a_label_beyond_the_classes(self):
        self.write({"a": [1.0, 2.0, 3.0, 4.0] * 20, "label": [0, 1, 2, 7] * 20})
        self.fails(self.train("model.output_dim=3"), DATA, "'data/a.parquet', row group 0, row", "the column 'label' is 7",
                   "the model has classes 0 to 2", "raise the model's output_dim")

    def test_an_empty_table(self):
        self.write({"a": pa.array([], pa.float64()), "label": pa.array([], pa.int64())})
        self.fails(self.train(), DATA, "the table has no rows: 'data/a.parquet' is empty")

    def test_a_size_that_the_columns_do_not_give(self):
        self.write(example())
        self.fails(self.train("model.input_dim=5"), DATA, "the columns of 'features' give 3 numbers a sample, and the model takes 5")

    def test_a_size_that_nothing_gives(self):
        self.fails(self.train("data.kind=random"), USAGE, "missing required key 'input_dim'")


if __name__ == "__main__":
    unittest.main()
