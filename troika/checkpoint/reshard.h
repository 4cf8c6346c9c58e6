// Writes a checkpoint again in another number of files.
#pragma once

#include <troika/checkpoint/checkpoint_folder.h>

#include <cstdint>

namespace troika {

// Writes the checkpoint of a step in `from` to `to`, in as many files as `files` ranks would write:
// each has an equal share of the elements of every tensor. Then reads it back, and compares every
// file with its SHA-256 and every tensor with what it was, bit by bit. Any number of ranks reads
// either; fewer, larger files are quicker to move. Returns the new manifest. Throws DataError
// naming a file of `from` that is damaged, and StorageError. Memory: the largest tensor, twice.
Manifest reshard_checkpoint(const CheckpointFolder& from, std::int64_t step,
                            const CheckpointFolder& to, int files);

}  // namespace troika
