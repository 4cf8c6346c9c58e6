#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/prepare.h>
#include <troika/data/sources/documents.h>
#include <troika/data/sources/tokens/token_documents.h>
#include <troika/data/sources/tokens/tokens.h>

namespace troika {
namespace {

// What to write into the recipe for shards in this file's folder, made by the tokenizer with this
// fingerprint.
std::string advice_on_tokenizer(const std::string& shard, std::uint64_t made_by) {
  if (made_by == open_tokenizer("bytes")->fingerprint()) return "write tokenizer = \"bytes\"";
  for (const char* name : {kTokenizerFile, kTokenizerJson}) {
    const std::string beside = (std::filesystem::path(shard).parent_path() / name).string();
    try {
      if (open_tokenizer(beside)->fingerprint() != made_by) continue;
      return "write tokenizer = \"" + beside + "\", which made them";
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): there is none
    }
  }
  return "give the model file that the shards were made with: `troika data prepare` puts it beside "
         "them, as tokenizer.model or tokenizer.json";
}

// Shards know which tokenizer made them; 0 is one of another program.
void check_tokenizer(const DocumentSource& source, const std::string& shard,
                     const DocumentOptions& options, const Tokenizer& tokenizer) {
  const std::uint64_t made_by = source.tokenizer();
  if (made_by == 0 || made_by == tokenizer.fingerprint()) return;
  throw DataError("the token shard " + shown_path(shard) +
                      " was not made by data.tokenizer = " + shown_path(options.tokenizer),
                  advice_on_tokenizer(shard, made_by));
}

class TokensKind final : public DocumentKind {
 public:
  TokensKind() : DocumentKind("tokens") {}

 private:
  [[nodiscard]] std::shared_ptr<const DocumentSource> open_documents(
      const DocumentOptions& options, std::vector<FoundFile> files, const Tokenizer& tokenizer,
      HostWork& /*host*/) const override {
    auto source = open_token_documents(files);
    check_tokenizer(*source, files.front().path, options, tokenizer);
    return source;
  }
};

}  // namespace

const DataKind& tokens_kind() {
  static const TokensKind kKind;
  return kKind;
}

}  // namespace troika
