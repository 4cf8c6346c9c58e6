// Conversations of JSON Lines files, a line each: {"messages": [{"role": "user", "content": "Hi"},
// ...]}, rendered by a template.
#pragma once

#include <troika/data/chat/chat_template.h>
#include <troika/data/find_files.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troika {

class TextReader;

// The size of the longest line that is read.
inline constexpr std::size_t kMaxConversationBytes = std::size_t{1} << 24;

// Opens files in this order of their numbers; they may be compressed, and in object stores. `key`
// holds the messages of a line. Other keys are not looked at; lines of white space are skipped.
// Takes memory for a line at a time. next() throws DataError naming file and line where that is no
// conversation, and a file that cannot be read.
[[nodiscard]] std::unique_ptr<TextReader> read_conversations(std::span<const FoundFile> files,
                                                             std::string key,
                                                             ChatTemplate chat_template,
                                                             std::vector<std::size_t> order);

// Returns the messages that the JSON of a line has under `key`. Throws DataError saying what is
// wrong, without the place.
[[nodiscard]] std::vector<ChatMessage> messages_of(std::string_view line, const std::string& key);

}  // namespace troika
