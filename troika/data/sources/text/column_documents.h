// The rows of a column of text as documents, each behind its prompt where another column has one,
// and conversations.
// Their tokens lie in a token shard without a name, in the folder for temporary files: memory does
// not grow with them.
#pragma once

#include <troika/data/document_source.h>
#include <troika/data/find_files.h>
#include <troika/data/host_work.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenizer.h>

#include <memory>
#include <span>
#include <string>

namespace troika {

// Tokenises columns of the files, once for the ranks of `host`, on ATen's intra-op threads. Throws
// DataError naming a file that cannot be read, or where no row has text; StorageError where the
// shard does not fit.
[[nodiscard]] std::unique_ptr<DocumentSource> open_column_documents(
    std::span<const FoundFile> files, const TextColumns& columns, const Tokenizer& tokenizer,
    HostWork& host);

}  // namespace troika
