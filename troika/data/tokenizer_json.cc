// The tokenizers of Hugging Face's libraries, through a plug-in (hub_tokenizer/plugin.h).
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/plugin_folder.h>
#include <troika/base/text.h>
#include <troika/data/hub_tokenizer/plugin.h>
#include <troika/data/tokenizer.h>

#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>

namespace troika {
namespace {

using Json = nlohmann::json;

// Loaded once, when such a tokenizer is needed first.
const hub_tokenizer_plugin::HubTokenizerPlugin& hub_plugin() {
  static const hub_tokenizer_plugin::HubTokenizerPlugin& loaded =
      []() -> const hub_tokenizer_plugin::HubTokenizerPlugin& {
    const auto path = detail::find_plugin(hub_tokenizer_plugin::kFile);
    if (!path) {
      throw UsageError(
          "the plug-in " + std::string(hub_tokenizer_plugin::kFile) + " is missing",
          "install troika again, or name its folder in " + std::string(detail::kPluginsVariable));
    }
    const auto entry = reinterpret_cast<hub_tokenizer_plugin::PluginEntry>(
        detail::load_plugin(*path, hub_tokenizer_plugin::kPluginEntry, detail::PluginScope::kOwn));
    return *entry();
  }();
  return loaded;
}

hub_tokenizer_plugin::TakeText store_in(std::string& text) {
  return [&text](std::string_view taken) { text = taken; };
}

// A token that the configuration beside the file names: as text, or as an object with its content.
std::optional<std::string> named_token(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_object()) return std::nullopt;
  const auto content = found->find("content");
  if (content == found->end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string_view json, const std::string& source, std::string_view config)
      : source_(source) {
    std::string error;
    model_ = hub_plugin().load(json, store_in(error));
    if (!model_) {
      throw DataError("the tokenizer " + quote(source_) + " cannot be used: " + error,
                      "data.tokenizer is \"bytes\", a SentencePiece model, or a tokenizer.json of "
                      "Hugging Face's libraries");
    }
    const Json said = Json::parse(config, nullptr, /*allow_exceptions=*/false);
    separator_ = find_special(said, "eos_token", kEnds);
    filler_ = find_special(said, "pad_token", kFillers).value_or(0);
    if (!separator_) {
      throw DataError("the tokenizer " + quote(source_) + " has no token that ends a text",
                      "tokenizer_config.json beside it names one as eos_token");
    }
    prefix_.assign(model_->prefix().begin(), model_->prefix().end());
    suffix_.assign(model_->suffix().begin(), model_->suffix().end());
    fingerprint_ = content_hash(json, static_cast<std::uint64_t>(*separator_));
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return model_->vocab_size(); }
  [[nodiscard]] std::int64_t separator() const override { return *separator_; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::span<const std::int32_t> prefix() const override { return prefix_; }
  [[nodiscard]] std::span<const std::int32_t> suffix() const override { return suffix_; }
  [[nodiscard]] std::int64_t filler() const override { return filler_; }

  [[nodiscard]] std::optional<NamedToken> token(std::string_view text) const override {
    const hub_tokenizer_plugin::NamedToken found = model_->token(text);
    if (found.id < 0) return std::nullopt;
    return NamedToken{found.id, found.strips_left, found.strips_right};
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode_as(text, {});
  }

  [[nodiscard]] std::vector<std::int32_t> encode_behind(std::string_view text,
                                                        Specials specials) const override {
    return encode_as(text, {false, specials == Specials::kAreTokens});
  }

  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override {
    const std::vector<int> known(ids.begin(), ids.end());
    std::string text, error;
    if (!model_->decode(known, store_in(text), store_in(error))) {
      throw DataError("ids cannot be decoded with " + quote(source_) + ": " + error);
    }
    return text;
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> encode_as(std::string_view text,
                                                    hub_tokenizer_plugin::Reading reading) const {
    std::vector<std::int32_t> ids;
    std::string error;
    const auto append = [&](std::span<const int> part) {
      ids.insert(ids.end(), part.begin(), part.end());
    };
    while (!text.empty()) {
      const std::size_t length = part_length(text);
      if (!model_->encode(text.substr(0, length), reading, append, store_in(error))) {
        throw DataError("a text cannot be encoded with " + quote(source_) + ": " + error);
      }
      text.remove_prefix(length);
    }
    return ids;
  }

  using Names = std::array<std::string_view, 8>;
  // What models call such tokens where nothing beside the file says it.
  static constexpr Names kEnds = {"<|endoftext|>", "</s>",    "<|end_of_text|>", "<eos>",
                                  "[SEP]",         "<|end|>", "<|im_end|>",      "[EOS]"};
  static constexpr Names kFillers = {
      "[PAD]", "<pad>", "<|pad|>",       "<|padding|>",
      "<PAD>", "[pad]", "<|pad_token|>", "<|finetune_right_pad_id|>"};

  [[nodiscard]] std::optional<std::int64_t> find_special(const Json& config, const char* key,
                                                         const Names& usual) const {
    if (const auto name = config.is_object() ? named_token(config, key) : std::nullopt) {
      const int id = model_->id_of(*name);
      if (id >= 0) return id;
    }
    for (const std::string_view name : usual) {
      const int id = model_->id_of(name);
      if (id >= 0) return id;
    }
    return std::nullopt;
  }

  std::string source_;
  std::unique_ptr<hub_tokenizer_plugin::Model> model_;
  std::optional<std::int64_t> separator_;
  std::int64_t filler_ = 0;
  std::vector<std::int32_t> prefix_, suffix_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(std::string_view json, const std::string& source,
                                               std::string_view config) {
  return std::make_unique<JsonTokenizer>(json, source, config);
}

}  // namespace troika
