#include <troika/data/hub_tokenizer/added_tokens.h>
#include <troika/data/hub_tokenizer/decoder.h>
#include <troika/data/hub_tokenizer/normalizer.h>
#include <troika/data/hub_tokenizer/plugin.h>
#include <troika/data/hub_tokenizer/pre_tokenizer.h>
#include <troika/data/hub_tokenizer/unicode.h>
#include <troika/data/hub_tokenizer/word_model.h>

#include <algorithm>
#include <exception>
#include <set>
#include <stdexcept>

namespace troika::hub_tokenizer_plugin {
namespace {

const nlohmann::json& section_of(const nlohmann::json& tokenizer, const char* name) {
  static const nlohmann::json kNone;
  const auto found = tokenizer.find(name);
  return found == tokenizer.end() ? kNone : *found;
}

// What a single text stands between: the section "post_processor".
struct Frame {
  std::vector<int> prefix, suffix;

  void read(const nlohmann::json& section) {
    if (section.is_null()) return;
    const std::string type = section.at("type");
    if (type == "Sequence") {
      for (const auto& each : section.at("processors")) read(each);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      prefix.push_back(section.at("cls").at(1));
      suffix.push_back(section.at("sep").at(1));
    } else if (type == "TemplateProcessing") {
      read_template(section);
    } else if (type != "ByteLevel") {
      throw std::runtime_error("its post_processor is of type \"" + type +
                               "\", which troika does not have");
    }
  }

 private:
  void read_template(const nlohmann::json& section) {
    bool is_behind = false;
    for (const auto& part : section.at("single")) {
      if (part.contains("Sequence")) {
        is_behind = true;
        continue;
      }
      const std::string name = part.at("SpecialToken").at("id");
      const auto ids = section.at("special_tokens").at(name).at("ids").get<std::vector<int>>();
      std::vector<int>& to = is_behind ? suffix : prefix;
      to.insert(to.end(), ids.begin(), ids.end());
    }
  }
};

// Ids of words that come again in a text.
class WordCache {
 public:
  void encode(const WordModel& model, const std::string& word, std::vector<int>& ids) {
    if (word.size() > kLongest) return model.encode(word, ids);
    const auto [known, is_new] = known_.try_emplace(word);
    if (is_new) model.encode(word, known->second);
    ids.insert(ids.end(), known->second.begin(), known->second.end());
  }

 private:
  static constexpr std::size_t kLongest = 64;  // bytes
  std::unordered_map<std::string, std::vector<int>> known_;
};

class HubModel final : public Model {
 public:
  explicit HubModel(const nlohmann::json& tokenizer)
      : normalizer_(section_of(tokenizer, "normalizer")),
        pre_tokenizer_(section_of(tokenizer, "pre_tokenizer")),
        words_(make_word_model(tokenizer.at("model"))),
        added_(added_tokens_of(tokenizer), normalizer_),
        decoder_(section_of(tokenizer, "decoder")) {
    frame_.read(section_of(tokenizer, "post_processor"));
    for (const auto& [text, id] : words_->vocabulary()) name(id, text);
    for (const AddedToken& token : added_tokens_of(tokenizer)) {
      name(token.id, token.text);
      ids_[token.text] = token.id;
      if (token.is_special) special_.insert(token.id);
    }
    for (const std::vector<int>* const ids : {&frame_.prefix, &frame_.suffix}) {
      for (const int id : *ids) {
        if (id >= 0 && id < vocab_size()) continue;
        throw std::runtime_error("its post_processor has the id " + std::to_string(id) +
                                 ", which is no token's");
      }
    }
  }

  [[nodiscard]] int vocab_size() const override { return static_cast<int>(tokens_.size()); }
  [[nodiscard]] int id_of(std::string_view token) const override {
    const std::string text(token);
    if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
    const auto found = words_->vocabulary().find(text);
    return found == words_->vocabulary().end() ? -1 : found->second;
  }
  void special_tokens(const std::function<void(std::string_view, int)>& take) const override {
    for (const int id : special_) take(tokens_[static_cast<std::size_t>(id)], id);
  }
  [[nodiscard]] std::span<const int> prefix() const override { return frame_.prefix; }
  [[nodiscard]] std::span<const int> suffix() const override { return frame_.suffix; }

  [[nodiscard]] NamedToken token(std::string_view text) const override {
    const AddedToken* const added = added_.named(text);
    if (added == nullptr) return {id_of(text)};
    return {added->id, added->strips_left, added->strips_right};
  }
  [[nodiscard]] bool encode(std::string_view text, Reading reading, const TakeIds& take,
                            const TakeText& error) const override {
    return tried(error, [&] { take(ids_of(valid_utf8(text), reading)); });
  }
  [[nodiscard]] bool decode(std::span<const int> ids, const TakeText& take,
                            const TakeText& error) const override {
    return tried(error, [&] {
      std::vector<std::string> tokens;
      for (const int id : ids) {
        if (id < 0 || id >= vocab_size() || special_.contains(id)) continue;
        tokens.push_back(tokens_[static_cast<std::size_t>(id)]);
      }
      take(decoder_.decode(std::move(tokens)));
    });
  }

 private:
  static constexpr int kLargestId = 1 << 24;

  template <class Work>
  static bool tried(const TakeText& error, const Work& work) {
    try {
      work();
      return true;
    } catch (const std::exception& failure) {
      error(failure.what());
      return false;
    }
  }

  void name(int id, const std::string& text) {
    if (id < 0 || id > kLargestId) {
      throw std::runtime_error("its token \"" + text + "\" has the id " + std::to_string(id));
    }
    if (id >= vocab_size()) tokens_.resize(static_cast<std::size_t>(id) + 1);
    tokens_[static_cast<std::size_t>(id)] = text;
  }

  [[nodiscard]] std::vector<int> ids_of(const std::string& all, Reading reading) const {
    std::vector<int> ids;
    WordCache cache;
    const auto token = [&](int id) { ids.push_back(id); };
    const AddedTokens::Pass others{false, reading.special_tokens};
    const AddedTokens::Pass normalised{true, reading.special_tokens};
    added_.cut(
        all, others,
        [&](std::string_view text, std::size_t begin) {
          const std::string normal = normalizer_.apply(std::string(text));
          added_.cut(
              normal, normalised,
              [&](std::string_view part, std::size_t inside) {
                const bool is_first = reading.is_first && begin == 0 && inside == 0;
                for (const std::string& word : pre_tokenizer_.cut(std::string(part), is_first)) {
                  cache.encode(*words_, word, ids);
                }
              },
              token);
        },
        token);
    return ids;
  }

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<WordModel> words_;
  AddedTokens added_;
  Decoder decoder_;
  Frame frame_;
  std::vector<std::string> tokens_;  // by id
  Vocabulary ids_;                   // of added tokens
  std::set<int> special_;
};

// Refuses what is no tokenizer.json at all, in words of its own.
nlohmann::json tokenizer_of(std::string_view json) {
  const auto tokenizer = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (tokenizer.is_discarded()) {
    constexpr std::string_view kPointer = "version https://git-lfs";
    throw std::runtime_error(json.starts_with(kPointer)
                                 ? "it is a pointer of Git LFS, and not the file itself"
                                 : "it is not JSON");
  }
  const auto model = tokenizer.is_object() ? tokenizer.find("model") : tokenizer.end();
  if (model == tokenizer.end() || !model->is_object()) {
    throw std::runtime_error(
        "it is JSON, and no tokenizer.json: there is no section \"model\", as the package "
        "tokenizers writes it");
  }
  return tokenizer;
}

// What the JSON library says, without its own name and number: "key 'type' not found".
std::string reason_of(const nlohmann::json::exception& failure) {
  const std::string_view what = failure.what();
  const std::size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

class HubTokenizers final : public HubTokenizerPlugin {
 public:
  [[nodiscard]] std::unique_ptr<Model> load(std::string_view json,
                                            const TakeText& error) const override {
    try {
      return std::make_unique<HubModel>(tokenizer_of(json));
    } catch (const nlohmann::json::exception& failure) {
      error("it is laid out as none of a kind that troika has: " + reason_of(failure));
    } catch (const std::exception& failure) {
      error(failure.what());
    }
    return nullptr;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const HubTokenizerPlugin*
troika_hub_tokenizer_plugin() {
  static const HubTokenizers plugin;
  return &plugin;
}

}  // namespace troika::hub_tokenizer_plugin
