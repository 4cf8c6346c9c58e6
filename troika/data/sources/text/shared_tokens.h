// Texts that are tokenised when a data set is opened: once for the ranks of a host. Their tokens
// lie in a token shard without a name, in the folder for temporary files, which all of them map.
#pragma once

#include <troika/data/document_source.h>
#include <troika/data/host_work.h>
#include <troika/data/text_reader.h>
#include <troika/data/tokenizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troika {

struct TokenisedTexts {
  std::unique_ptr<DocumentSource> tokens;
  std::vector<std::uint64_t> positions;  // TextReader::position() of each document
  std::string warning;                   // NotUtf8::describe()
};

// Says what becomes of documents that have no tokens.
enum class Tokenless { kKept, kLeftOut };

// Says whether the folder for temporary files has to have room for the shard.
enum class Room { kIsNeeded, kIsOptional };

// Opens the reader of the texts; called by the rank that tokenises them.
using OpenReader = std::function<std::unique_ptr<TextReader>()>;

// Tokenises texts on ATen's intra-op threads. Collective among the ranks of `host`. `tokens` is
// null where no text has a token, or where there was no room and none is needed, which the log
// says. Throws DataError naming a file that cannot be read; StorageError where the shard does not
// fit.
[[nodiscard]] TokenisedTexts tokenise_once(HostWork& host, const OpenReader& open,
                                           const Tokenizer& tokenizer, Tokenless tokenless,
                                           Room room = Room::kIsNeeded);

}  // namespace troika
