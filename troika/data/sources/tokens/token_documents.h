// The documents of token shards, one after the other: memory-mapped here, and read where samples
// need them in object stores.
#pragma once

#include <troika/data/document_source.h>
#include <troika/data/find_files.h>

#include <memory>
#include <span>

namespace troika {

// Opens documents in the order of `files`. Throws DataError naming a file that is no valid shard,
// or two that were made by different tokenizers; StorageError where a store cannot be reached.
[[nodiscard]] std::unique_ptr<DocumentSource> open_token_documents(
    std::span<const FoundFile> files);

}  // namespace troika
