#include <troika/data/sources/documents.h>
#include <troika/data/sources/text/text.h>
#include <troika/data/sources/text/text_documents.h>

namespace troika {
namespace {

class TextKind final : public DocumentKind {
 public:
  TextKind() : DocumentKind("text") {}

  void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                   const Origins& origins) const override {
    DocumentKind::check_model(options, sample, model, origins);
    if (options.as<DocumentOptions>().tokenizer != "bytes" || sample.input().range >= 256) return;
    const std::string key(sample.input().range_key);
    origins.fail({"model." + key}, key + " = " + std::to_string(sample.input().range) +
                                       " is too small for tokenizer = \"bytes\"; at least 256");
  }

 private:
  [[nodiscard]] std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files,
      const Tokenizer& tokenizer) const override {
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
