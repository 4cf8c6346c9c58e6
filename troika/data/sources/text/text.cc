#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/column_documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/data/sources/text/text_documents.h>
#include <troika/data/text_reader.h>

namespace troika {
namespace {

// Empty where files are the documents.
std::string column_of(const DocumentOptions& options) {
  return options.column == DocumentOptions().column ? "" : options.column;
}

class TextKind final : public DocumentKind {
 public:
  TextKind()
      : DocumentKind("text", {KeysOf<DocumentOptions>::text<&DocumentOptions::column>(
                                 "column",
                                 "of Parquet, CSV, JSON Lines and Arrow files: its rows are the "
                                 "documents; \"\": each file is one")}) {}

  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override {
    DocumentKind::check_model(options, sample, model, origins);
    if (options.as<DocumentOptions>().tokenizer != "bytes" || sample.input().range >= 256) return;
    const std::string key(sample.input().range_key);
    origins.fail({"model." + key}, key + " = " + std::to_string(sample.input().range) +
                                       " is too small for tokenizer = \"bytes\"; at least 256");
  }

 private:
  [[nodiscard]] FileSearch find(const DocumentOptions& options) const override {
    return find_texts(options.paths, column_of(options));
  }
  [[nodiscard]] std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files,
      const Tokenizer& tokenizer) const override {
    const std::string column = column_of(options);
    if (!column.empty()) return open_column_documents(files, column, tokenizer);
    if (options.tokenizer == "bytes") return open_byte_documents(std::move(files));
    return open_tokenized_documents(std::move(files), tokenizer);
  }
};

}  // namespace

const DataKind& text_kind() {
  static const TextKind kKind;
  return kKind;
}

}  // namespace troika
