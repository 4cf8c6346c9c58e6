#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/nested_json.h>
#include <troika/base/text.h>
#include <troika/data/chat/conversations.h>
#include <troika/data/sources/table/arrow_library.h>
#include <troika/data/text_reader.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace troika {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kBlockBytes = 1 << 20;
constexpr int kMostShownKeys = 8;
constexpr int kDeepest = 200;  // levels of a line; each takes memory
constexpr auto kRoles = std::to_array<std::string_view>({"system", "user", "assistant"});
constexpr const char* kForm = R"(as in {"messages": [{"role": "user", "content": "Hi"}, ...]})";

// Reads a file line by line.
class Lines {
 public:
  explicit Lines(const FoundFile& file) : path_(file.path) {
    stream_ = arrow_library().open_text(path_, [this](std::string_view why) { fail(why); });
    if (!stream_) fail("it cannot be opened");
  }

  // Returns the next line without its end; nothing behind the last.
  [[nodiscard]] std::optional<std::string> next() {
    std::size_t searched = begin_;
    while (true) {
      const std::size_t end = text_.find('\n', searched);
      if (end != std::string::npos) return take(end, end + 1);
      if (ended_) break;
      searched = text_.size();
      if (text_.size() - begin_ > kMaxConversationBytes) refuse_long();
      read_more(searched);
    }
    if (begin_ == text_.size()) return std::nullopt;
    return take(text_.size(), text_.size());
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  std::string take(std::size_t end, std::size_t behind) {
    if (end - begin_ > kMaxConversationBytes) refuse_long();
    ++number_;
    std::string line = text_.substr(begin_, end - begin_);
    begin_ = behind;
    return line;
  }
  void read_more(std::size_t& searched) {
    text_.erase(0, begin_);
    searched -= begin_;
    begin_ = 0;
    std::string error;
    const auto add = [&](std::string_view more) {
      ended_ = more.empty();
      text_ += more;
    };
    if (!stream_->read(kBlockBytes, add, [&](std::string_view why) { error = why; })) fail(error);
    if (std::exchange(begun_, true) || !text_.starts_with("\xEF\xBB\xBF")) return;
    text_.erase(0, 3);  // a mark of the byte order
  }
  [[noreturn]] void fail(std::string_view why) const {
    throw DataError("the data file " + shown_path(path_) + " cannot be read: " + std::string(why),
                    "data.messages is of JSON Lines, which may be compressed with gzip or zstd");
  }
  [[noreturn]] void refuse_long() const {
    throw DataError(shown_path(path_) + ", line " + std::to_string(number_ + 1) +
                        ", has more than " + std::to_string(kMaxConversationBytes >> 20) + " MiB",
                    "a line is one conversation");
  }

  std::string path_;
  std::unique_ptr<arrow_plugin::TextStream> stream_;
  std::string text_;
  std::size_t begin_ = 0;     // of the next line
  std::uint64_t number_ = 0;  // of the latest line, from 1
  bool begun_ = false, ended_ = false;
};

// Without the number and the name that the JSON library puts before it.
std::string reason_of(const Json::parse_error& error) {
  const std::string_view what = error.what();
  const std::size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

Json parse(std::string_view line) {
  try {
    return parse_nested_json(line, kDeepest);
  } catch (const Json::parse_error& error) {
    std::string reason = reason_of(error);
    constexpr std::string_view kLine = "line 1, ";  // the line is all that it was given
    if (const std::size_t at = reason.find(kLine); at != std::string::npos) {
      reason.erase(at, kLine.size());
    }
    // It quotes what it has read last, which may be long and of any bytes.
    if (const std::size_t quoted = reason.find("; last read"); quoted != std::string::npos) {
      reason.resize(quoted);
    }
    const bool is_text = count_not_utf8(line) == 0;
    throw DataError(
        is_text ? "it is not JSON: " + reason : "it is not UTF-8",
        is_text ? "JSON Lines have one object a line" : "`iconv -f latin1 -t utf8` may mend it");
  }
}

// Appends the text of a part of a content that is a list.
void add_part(const Json& part, const std::string& where, std::string& text) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  const bool is_typed = part.is_object() && type != part.end() && type->is_string();
  if (is_typed && *type != "text") {
    throw DataError(where + " has a part of the type " + quote(type->get<std::string>()),
                    "only parts of the type \"text\" are learned from");
  }
  const auto found = is_typed ? part.find("text") : part.end();
  if (!is_typed || found == part.end() || !found->is_string()) {
    throw DataError(where + " has a part that is none",
                    R"(as in "content": [{"type": "text", "text": "Hi"}])");
  }
  text += found->get_ref<const std::string&>();
}

// Throws where a message says something beside its content, which would be lost.
void check_is_content_alone(const Json& message, const std::string& where) {
  constexpr auto kOthers = std::to_array<const char*>(
      {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "refusal"});
  for (const char* const key : kOthers) {
    const auto found = message.find(key);
    if (found == message.end() || found->empty()) continue;
    if (found->is_string() && found->get_ref<const std::string&>().empty()) continue;
    throw DataError(where + " has " + key + ", which no template here has",
                    "render it before, and name the column of the text as data.column");
  }
}

std::string content_of(const Json& message, const std::string& where) {
  check_is_content_alone(message, where);
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) throw DataError(where + " has no content", kForm);
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) throw DataError(where + " has a content that is no text", kForm);
  std::string text;
  for (const Json& part : *found) add_part(part, where, text);
  return text;
}

std::string role_of(const Json& message, const std::string& where) {
  const auto found = message.find("role");
  if (found == message.end()) throw DataError(where + " has no role", kForm);
  if (!found->is_string()) throw DataError(where + " has a role that is no text", kForm);
  std::string role = *found;
  if (std::ranges::find(kRoles, role) != kRoles.end()) return role;
  const auto meant = nearest(role, kRoles);
  throw DataError(
      where + " has the role " + quote(role) + ", and roles are system, user and assistant",
      meant            ? "did you mean " + quote(*meant) + "?"
      : role == "tool" ? "render it before, and name the column of the text as data.column"
                       : std::string(kForm));
}

// OpenAI's files say by a weight of 0 that an answer is not to be learned.
bool is_learned(const Json& message, const std::string& where) {
  const auto found = message.find("weight");
  if (found == message.end() || found->is_null()) return true;
  if (*found == 0 || *found == 1) return *found == 1;
  throw DataError(where + " has a weight that is neither 0 nor 1");
}

class Conversations final : public TextReader {
 public:
  Conversations(std::span<const FoundFile> files, std::string key, ChatTemplate chat_template,
                std::vector<std::size_t> order)
      : files_(files.begin(), files.end()),
        key_(std::move(key)),
        template_(chat_template),
        order_(std::move(order)) {
    fit_arrow_threads();
  }

  [[nodiscard]] std::optional<TextPart> next() override {
    for (; file_ < order_.size(); ++file_, lines_.reset()) {
      const FoundFile& file = files_[order_[file_]];
      if (!lines_) lines_.emplace(file);
      while (std::optional<std::string> line = lines_->next()) {
        if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
        positions_.push_back(std::uint64_t{order_[file_]} << kLineBits | lines_->number());
        ChatText chat = rendered(*line);
        return TextPart{positions_.size() - 1, true, false, std::move(chat.text),
                        std::move(chat.spans)};
      }
      done_ += file.size;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool separator_is_target() const override { return false; }
  [[nodiscard]] std::uint64_t position(std::size_t document) const override {
    return positions_[document];
  }
  [[nodiscard]] std::string describe_position(std::uint64_t position) const override {
    const std::uint64_t line = position & ((std::uint64_t{1} << kLineBits) - 1);
    return shown_path(files_[position >> kLineBits].path) + ", line " + std::to_string(line);
  }
  [[nodiscard]] std::int64_t done_bytes() const override { return done_; }
  [[nodiscard]] std::int64_t all_bytes() const override {
    std::int64_t bytes = 0;
    for (const FoundFile& file : files_) bytes += file.size;
    return bytes;
  }

 private:
  static constexpr int kLineBits = 40;

  [[nodiscard]] ChatText rendered(std::string_view line) const {
    try {
      return render_chat(template_, messages_of(line, key_));
    } catch (const DataError& error) {
      throw DataError(describe(positions_.size() - 1) + ": " + error.what(), error.hint());
    }
  }

  std::vector<FoundFile> files_;
  std::string key_;
  ChatTemplate template_;
  std::vector<std::size_t> order_;
  std::size_t file_ = 0;  // in that order
  std::optional<Lines> lines_;
  std::vector<std::uint64_t> positions_;
  std::int64_t done_ = 0;
};

}  // namespace

std::vector<ChatMessage> messages_of(std::string_view line, const std::string& key) {
  const Json row = parse(line);
  if (!row.is_object()) throw DataError("it is no object", kForm);
  const auto found = row.find(key);
  if (found == row.end()) {
    std::string keys;
    int count = 0;
    for (const auto& each : row.items()) {
      if (count++ == kMostShownKeys) break;
      keys += (keys.empty() ? "" : ", ") + quote(each.key());
    }
    throw DataError("it has no " + quote(key), "data.messages names one of its keys: " + keys);
  }
  if (!found->is_array()) throw DataError(quote(key) + " is no list of messages", kForm);
  std::vector<ChatMessage> messages;
  for (const Json& message : *found) {
    const std::string where = "message " + std::to_string(messages.size());
    if (!message.is_object()) throw DataError(where + " is no object", kForm);
    std::string role = role_of(message, where);
    messages.push_back({std::move(role), content_of(message, where), is_learned(message, where)});
  }
  return messages;
}

std::unique_ptr<TextReader> read_conversations(std::span<const FoundFile> files, std::string key,
                                               ChatTemplate chat_template,
                                               std::vector<std::size_t> order) {
  return std::make_unique<Conversations>(files, std::move(key), chat_template, std::move(order));
}

}  // namespace troika
