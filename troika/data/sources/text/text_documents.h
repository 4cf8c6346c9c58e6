// Text files as documents, one a file. As bytes they stay on disk and are read where a sample needs
// them; with another tokenizer they are tokenised when the data set is opened, and the ids are kept
// in memory, or in a file that the ranks of a host share (`troika data prepare` does that once, for
// all ranks and runs).
#pragma once

#include <troika/data/document_source.h>
#include <troika/data/find_files.h>
#include <troika/data/host_work.h>
#include <troika/data/tokenizer.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troika {

// Opens documents in the order of `files`. Reads the head of every file on ATen's intra-op threads
// for its key, once for the ranks of `host` where that is dear. Throws DataError naming a file that
// cannot be read.
[[nodiscard]] std::unique_ptr<DocumentSource> open_byte_documents(std::vector<FoundFile> files,
                                                                  HostWork& host);

// Opens documents likewise for any tokenizer, which tokenises them once for the ranks of `host`.
// Takes 4 bytes of memory a token in a rank alone, and where there is no room for temporary files.
[[nodiscard]] std::unique_ptr<DocumentSource> open_tokenized_documents(std::vector<FoundFile> files,
                                                                       const Tokenizer& tokenizer,
                                                                       HostWork& host);

// Returns the keys of files by the text in them, on ATen's intra-op threads. Throws DataError
// naming a file that cannot be read.
[[nodiscard]] std::vector<std::uint64_t> keys_of(std::span<const FoundFile> files);

}  // namespace troika
