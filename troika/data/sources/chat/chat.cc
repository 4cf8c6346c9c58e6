#include <troika/data/sources/chat/chat.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/column_documents.h>
#include <troika/data/text_reader.h>

namespace troika {
namespace {

TextColumns columns_of(const DocumentOptions& options) {
  if (options.column != DocumentOptions().column) {
    return {.text = options.column, .chat_template = options.chat_template};
  }
  return {.text = "", .messages = options.messages, .chat_template = options.chat_template};
}

// clang-format off
std::vector<Key> chat_keys() {
  using O = DocumentOptions;
  using K = KeysOf<O>;
  return {
      K::choice<&O::chat_template>("template", "how messages become one text, and where the assistant's begin"),
      K::text<&O::messages>("messages", "the key of JSON Lines that holds a conversation: messages with role and content"),
      K::text<&O::column>("column", "of Parquet, CSV, JSON Lines and Arrow files: conversations that the template has rendered already; none: messages are"),
  };
}
// clang-format on

DocumentOptions chat_defaults() {
  DocumentOptions options;
  options.pack = Pack::kIsolated;
  return options;
}

class ChatKind final : public DocumentKind {
 public:
  ChatKind() : DocumentKind("chat", chat_keys(), chat_defaults()) {}

  void check(const Options& options, const Origins& origins) const override {
    DocumentKind::check(options, origins);
    const auto& chats = options.as<DocumentOptions>();
    const DocumentOptions defaults;
    if (chats.column != defaults.column && chats.messages != defaults.messages) {
      origins.fail({"data.messages"},
                   "messages names a key of conversations, and column a text that is rendered",
                   "take one of the two out");
    }
    if (chats.pack != Pack::kConcatenate) return;
    origins.fail({"data.pack"}, "pack = \"concatenate\" has conversations attend to each other",
                 "write pack = \"isolated\" or \"pad\"");
  }

  void check_ready(const Options& options, const Origins& origins) const override {
    DocumentKind::check_ready(options, origins);
    if (options.as<DocumentOptions>().tokenizer != "bytes") return;
    origins.fail(
        {"data.tokenizer"}, "tokenizer = \"bytes\" has no control tokens, which conversations need",
        "name the tokenizer.json of the model, as in tokenizer = \"model/tokenizer.json\"");
  }

 private:
  [[nodiscard]] FileSearch find(const DocumentOptions& options,
                                const GoesOn& goes_on) const override {
    return find_texts(options.paths, columns_of(options), goes_on);
  }
  [[nodiscard]] std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files, const Tokenizer& tokenizer,
      HostWork& host) const override {
    check_chat_tokenizer(options.chat_template, tokenizer, options.tokenizer);
    return open_column_documents(files, columns_of(options), tokenizer, host);
  }
};

}  // namespace

const DataKind& chat_kind() {
  static const ChatKind kKind;
  return kKind;
}

}  // namespace troika
