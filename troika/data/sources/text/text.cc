#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/column_documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/data/sources/text/text_documents.h>
#include <troika/data/text_reader.h>

namespace troika {
namespace {

TextColumns columns_of(const DocumentOptions& options) {
  const auto named = [](const std::string& column) {
    return column == DocumentOptions().column ? "" : column;
  };
  return {named(options.column), named(options.prompt_column)};
}

// clang-format off
std::vector<Key> text_keys() {
  using O = DocumentOptions;
  using K = KeysOf<O>;
  return {
      K::text<&O::column>("column", "of Parquet, CSV, JSON Lines and Arrow files: its rows are the documents; none: each file is one"),
      K::text<&O::prompt_column>("prompt_column", "of the same files: text that stands before a row's, and is not to be learned: its tokens are no targets"),
  };
}
// clang-format on

class TextKind final : public DocumentKind {
 public:
  TextKind() : DocumentKind("text", text_keys()) {}

  void check(const Options& options, const Origins& origins) const override {
    DocumentKind::check(options, origins);
    const TextColumns columns = columns_of(options.as<DocumentOptions>());
    if (columns.prompt.empty() || !columns.text.empty()) return;
    origins.fail({"data.prompt_column"},
                 "prompt_column stands before the text of `column`, which is none",
                 "as in column = \"answer\", prompt_column = \"question\"");
  }

  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override {
    DocumentKind::check_model(options, sample, model, origins);
    if (options.as<DocumentOptions>().tokenizer != "bytes" || sample.input().range >= 256) return;
    const std::string key(sample.input().range_key);
    origins.fail({"model." + key}, key + " = " + std::to_string(sample.input().range) +
                                       " is too small for tokenizer = \"bytes\"; at least 256");
  }

 private:
  [[nodiscard]] FileSearch find(const DocumentOptions& options,
                                const GoesOn& goes_on) const override {
    return find_texts(options.paths, columns_of(options), goes_on);
  }
  [[nodiscard]] std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files, const Tokenizer& tokenizer,
      HostWork& host) const override {
    const TextColumns columns = columns_of(options);
    if (!columns.text.empty()) return open_column_documents(files, columns, tokenizer, host);
    if (options.tokenizer == "bytes") return open_byte_documents(std::move(files), host);
    return open_tokenized_documents(std::move(files), tokenizer, host);
  }
};

}  // namespace

const DataKind& text_kind() {
  static const TextKind kKind;
  return kKind;
}

}  // namespace troika
