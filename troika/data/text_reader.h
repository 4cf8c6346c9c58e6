// The texts of documents, part by part: of text files, one a file, of a column of tables, one a
// row, or of conversations.
#pragma once

#include <troika/data/chat/chat_template.h>
#include <troika/data/find_files.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct TextPart {
  std::size_t document = 0;
  bool last = false;            // of its document
  bool is_prompt = false;       // stands before what is to be learned; such parts come first
  std::string text;             // as part_length() cuts it; a whole conversation
  std::vector<TextSpan> spans;  // of a conversation; empty: it is plain text
};

// The columns of tables that hold texts; empty: files are the documents.
struct TextColumns {
  std::string text;
  std::string prompt = {};    // empty: there is none
  std::string messages = {};  // of conversations in JSON Lines; then there is no other column
  // Renders conversations. With `text`, it has rendered that column.
  std::optional<ChatTemplate> chat_template = {};

  // Returns whether documents are rows, rather than files.
  [[nodiscard]] bool are_rows() const { return !text.empty() || !messages.empty(); }
};

// Reads documents one after the other. Those without text have none: rows without a value, and
// empty ones. Not thread safe.
class TextReader {
 public:
  virtual ~TextReader() = default;
  // Returns the next part; nothing at the end. Throws DataError naming a file that cannot be read.
  [[nodiscard]] virtual std::optional<TextPart> next() = 0;
  // Returns a number for where a document that has been read lies in the files, whatever the order
  // of reading.
  [[nodiscard]] virtual std::uint64_t position(std::size_t document) const = 0;
  // Names the document at such a position, for messages: its file, and its row in a table. Any
  // reader of the same files can.
  [[nodiscard]] virtual std::string describe_position(std::uint64_t position) const = 0;
  // Returns whether what stands behind a document is to be learned.
  [[nodiscard]] virtual bool separator_is_target() const { return true; }
  // Names a document that has been read.
  [[nodiscard]] std::string describe(std::size_t document) const {
    return describe_position(position(document));
  }
  // Return how many bytes of the files are read, and how many there are.
  [[nodiscard]] virtual std::int64_t done_bytes() const = 0;
  [[nodiscard]] virtual std::int64_t all_bytes() const = 0;
};

// kShuffled: in a fixed shuffled order of files, or of row groups.
enum class TextOrder { kAsFound, kShuffled };

// Opens files that are documents.
[[nodiscard]] std::unique_ptr<TextReader> read_text_files(std::span<const FoundFile> files,
                                                          TextOrder order = TextOrder::kAsFound);

// Opens columns of Parquet, CSV, JSON Lines and Arrow files. Throws DataError naming the file where
// one is missing or is no text.
[[nodiscard]] std::unique_ptr<TextReader> read_text_columns(std::span<const FoundFile> files,
                                                            const TextColumns& columns,
                                                            TextOrder order = TextOrder::kAsFound);

// Opens files as documents, or their columns, or conversations.
[[nodiscard]] std::unique_ptr<TextReader> read_texts(std::span<const FoundFile> files,
                                                     const TextColumns& columns,
                                                     TextOrder order = TextOrder::kAsFound);

// Finds the files that hold texts; tables may lie in object stores, and in folders. `goes_on` as
// for find_files().
[[nodiscard]] FileSearch find_texts(std::span<const std::string> paths, const TextColumns& columns,
                                    const GoesOn& goes_on = {});

}  // namespace troika
