"""PyTorch's DataLoader over a Parquet file, shuffled as ours: table_loader.py FILE ROWS rows|batches

Row groups come in random order, and rows inside a group. With `rows` the data set gives a row at a time, as PyTorch's
documentation has it, and the loader makes the batches; with `batches` it gives whole batches. Columns but the last are
features. Prints the seconds of loading as JSON.
"""

import json
import sys
import time

import numpy
import pyarrow.parquet
import torch

BATCH = 256


class Groups(torch.utils.data.IterableDataset):
    def __init__(self, path, give):
        self.path, self.give = path, give

    def __iter__(self):
        file = pyarrow.parquet.ParquetFile(self.path)
        for group in numpy.random.permutation(file.num_row_groups):
            table = file.read_row_group(int(group))
            *names, label = table.column_names
            features = numpy.stack([table[name].to_numpy() for name in names], axis=1).astype(numpy.float32)
            labels, order = table[label].to_numpy(), numpy.random.permutation(table.num_rows)
            if self.give == "rows":
                for row in order:
                    yield features[row], labels[row]
            else:
                for first in range(0, len(order), BATCH):
                    rows = order[first:first + BATCH]
                    yield torch.from_numpy(features[rows]), torch.from_numpy(labels[rows])


def main():
    path, wanted, give = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Groups(path, give), batch_size=BATCH if give == "rows" else None)
    began, seen = time.perf_counter(), 0
    while seen < wanted:
        for features, _ in loader:
            seen += len(features)
            if seen >= wanted:
                break
    print(json.dumps({"rows": seen, "seconds": time.perf_counter() - began}))


main()
