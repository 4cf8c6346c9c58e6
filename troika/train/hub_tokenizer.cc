#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/data/tokenizer.h>
#include <troika/train/hub_tokenizer.h>
#include <troika/train/saved_tokenizer.h>
#include <troika/train/sentencepiece_json.h>

#include <nlohmann/json.hpp>

namespace troika {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kIndent = 2;
constexpr int kBytes = 256;
constexpr const char* kByteTokenizer = "bytes";
constexpr std::string_view kTokenIds = "tokens";

// A byte's stand-in among the characters that GPT-2's vocabulary is written in: itself where it can
// be seen, else the next of those from U+0100 on (Radford et al. 2019, their encoder.py).
std::string stand_in(int byte, int& unseen) {
  const bool is_seen = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                       (byte >= 0xAE && byte <= 0xFF);
  const int point = is_seen ? byte : kBytes + unseen++;
  constexpr int kOneByte = 0x80, kLead = 0xC0, kFollow = 0x80, kFollowBits = 6, kFollowMask = 0x3F;
  if (point < kOneByte) return {static_cast<char>(point)};
  return {static_cast<char>(kLead | (point >> kFollowBits)),
          static_cast<char>(kFollow | (point & kFollowMask))};
}

std::string byte_tokenizer() {
  Json vocabulary = Json::object();
  int unseen = 0;
  for (int byte = 0; byte < kBytes; ++byte) vocabulary[stand_in(byte, unseen)] = byte;
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", bytes},
              {"post_processor", nullptr},
              {"decoder", bytes},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", vocabulary},
                {"merges", Json::array()}}}}
             .dump(kIndent) +
         "\n";
}

std::string tokenizer_config(std::string_view tokenizer_class, const Recipe& recipe) {
  return Json{{"tokenizer_class", tokenizer_class},
              {"model_max_length", traits_of(recipe.model).sample.input().shape.front()},
              {"add_bos_token", false},
              {"add_eos_token", false},
              {"add_prefix_space", false},
              {"legacy", false},
              {"clean_up_tokenization_spaces", false}}
             .dump(kIndent) +
         "\n";
}

}  // namespace

bool knows_tokenizer(const Recipe& recipe) {
  const auto name = recipe.data.kind().tokenizer(recipe.data.options());
  return name && (*name != kByteTokenizer || recipe.data.name() != kTokenIds);
}

std::optional<HubTokenizer> hub_tokenizer_of(const Recipe& recipe) {
  const auto name = recipe.data.kind().tokenizer(recipe.data.options());
  if (!name) return std::nullopt;
  const std::int64_t vocabulary = traits_of(recipe.model).sample.input().range;
  if (!knows_tokenizer(recipe) && vocabulary > kBytes) return std::nullopt;
  HubTokenizer tokenizer;
  tokenizer.separator = open_tokenizer(*name)->separator();
  std::optional<std::string> json;
  if (*name == kByteTokenizer) {
    json = byte_tokenizer();
  } else {
    TokenizerFiles files = read_tokenizer(*name);
    if (files.is_json()) {
      tokenizer.files = tokenizer_files_in(fs::path(files.source).parent_path());
      json = std::move(files.model);
    } else {
      json = sentencepiece_json(files.model);
      tokenizer.files["tokenizer.model"] = std::move(files.model);
    }
  }
  tokenizer.files.try_emplace(
      kTokenizerConfig,
      tokenizer_config(json ? "PreTrainedTokenizerFast" : "LlamaTokenizer", recipe));
  if (json) tokenizer.files[kTokenizerJson] = *json;
  return tokenizer;
}

}  // namespace troika
