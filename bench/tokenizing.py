"""Text to token ids, against the package `tokenizers`: byte-pair encoding over bytes with Llama 3's words, 16,000 ids.

Both have all cores. Ours is `troika data prepare`, from its start until the shards are on disk. The peer's time is that of
encode_batch_fast alone, without reading files.
"""

import json
import pathlib
import shutil
import time

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "tokenize_texts.py"
MEGABYTES = 20
GOAL = 1


def tokenizing(rows):
    """What `rows.row` takes; `rows` is a Rows. Times are those of a megabyte."""
    bench, options = rows.bench, rows.options
    folder = bench.scratch / "tokenizing"
    bench.run([options.peer_python, PEER, "write", folder, MEGABYTES])

    def ours():
        shutil.rmtree(folder / "out", ignore_errors=True)
        began = time.perf_counter()
        bench.run([options.troika, "data", "prepare", folder / "out", f"{folder}/texts/*.txt", "--tokenizer", folder / "tokenizer.json"])
        return (time.perf_counter() - began) / MEGABYTES

    def theirs():
        found = json.loads(bench.run([options.peer_python, PEER, "read", folder, MEGABYTES])[0])
        return found["seconds"] / MEGABYTES

    yield "a megabyte of text to ids", "troika data prepare", "tokenizers", 1, rows.alternate("tokenizing", ours, theirs), GOAL
