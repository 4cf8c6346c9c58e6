// The model "BPE" of a tokenizer: byte-pair encoding (Sennrich et al. 2016) by merges in the order
// of their ranks.
#include <troika/data/hub_tokenizer/unicode.h>
#include <troika/data/hub_tokenizer/word_model.h>

#include <algorithm>
#include <optional>
#include <queue>
#include <stdexcept>
#include <utility>

namespace troika::hub_tokenizer_plugin {
namespace {

struct Merge {
  int rank = 0;
  int id = 0;
};

std::uint64_t pair_key(int left, int right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

// The symbols of a word as a list, of which the pair that is merged next is taken from a heap.
class Symbols {
 public:
  using Merges = std::unordered_map<std::uint64_t, Merge>;

  Symbols(std::vector<int> ids, const Merges& merges) : merges_(merges) {
    const int count = static_cast<int>(ids.size());
    for (int i = 0; i < count; ++i) {
      symbols_.push_back({ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    }
    for (int i = 0; i + 1 < count; ++i) offer(i);
  }

  void merge_all() {
    while (!waiting_.empty()) {
      const Candidate next = waiting_.top();
      waiting_.pop();
      Symbol& left = at(next.place);
      // It may have been merged with another since.
      if (left.id < 0 || left.next < 0) continue;
      const auto found = merges_.find(pair_key(left.id, at(left.next).id));
      if (found == merges_.end() || found->second.rank != next.rank) continue;
      Symbol& right = at(left.next);
      left.id = found->second.id;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) at(left.next).previous = next.place;
      if (left.previous >= 0) offer(left.previous);
      if (left.next >= 0) offer(next.place);
    }
  }

  void append_to(std::vector<int>& ids) const {
    for (const Symbol& each : symbols_) {
      if (each.id >= 0) ids.push_back(each.id);
    }
  }

 private:
  struct Symbol {
    int id, previous, next;
  };
  struct Candidate {
    int rank, place;
    // The lowest rank comes first, and of these the leftmost.
    bool operator<(const Candidate& other) const {
      return std::pair(rank, place) > std::pair(other.rank, other.place);
    }
  };

  Symbol& at(int place) { return symbols_[static_cast<std::size_t>(place)]; }
  void offer(int place) {
    const auto found = merges_.find(pair_key(at(place).id, at(at(place).next).id));
    if (found != merges_.end()) waiting_.push({found->second.rank, place});
  }

  const Merges& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> waiting_;
};

std::string text_or_empty(const nlohmann::json& model, const char* key) {
  const auto found = model.find(key);
  return found == model.end() || found->is_null() ? "" : found->get<std::string>();
}

class BytePairs final : public WordModel {
 public:
  explicit BytePairs(const nlohmann::json& model)
      : vocabulary_(model.at("vocab").get<Vocabulary>()),
        prefix_(text_or_empty(model, "continuing_subword_prefix")),
        suffix_(text_or_empty(model, "end_of_word_suffix")),
        falls_back_(model.value("byte_fallback", false)),
        fuses_unknown_(model.value("fuse_unk", false)),
        ignores_merges_(model.value("ignore_merges", false)) {
    const std::string unknown = text_or_empty(model, "unk_token");
    if (!unknown.empty()) unknown_ = find(unknown);  // it may be among the added tokens alone
    int rank = 0;
    for (const auto& merge : model.at("merges")) add_merge(merge, rank++);
  }

  void encode(std::string_view word, std::vector<int>& ids) const override {
    if (ignores_merges_) {
      if (const auto id = find(std::string(word))) return ids.push_back(*id);
    }
    Symbols symbols(symbols_of(word), merges_);
    symbols.merge_all();
    symbols.append_to(ids);
  }
  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void add_merge(const nlohmann::json& merge, int rank) {
    std::string left, right;
    if (merge.is_array()) {
      left = merge.at(0);
      right = merge.at(1);
    } else {
      const std::string both = merge;
      const std::size_t space = both.find(' ');
      left = both.substr(0, space);
      right = space == std::string::npos ? "" : both.substr(space + 1);
    }
    const bool continues = !prefix_.empty() && right.starts_with(prefix_);
    const std::string made = left + (continues ? right.substr(prefix_.size()) : right);
    const auto a = find(left), b = find(right), c = find(made);
    if (!a || !b || !c) {
      throw std::runtime_error("its merge \"" + left + " " + right + "\" is not of its vocabulary");
    }
    merges_.try_emplace(pair_key(*a, *b), Merge{rank, *c});
  }

  [[nodiscard]] std::optional<int> find(const std::string& token) const {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end()) return std::nullopt;
    return found->second;
  }

  [[nodiscard]] std::vector<int> symbols_of(std::string_view word) const {
    std::vector<int> ids;
    bool was_unknown = false;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = std::min(utf8_length(word[at]), word.size() - at);
      const std::string_view character = word.substr(at, length);
      const bool is_last = at + length == word.size();
      const auto id =
          find((at > 0 ? prefix_ : "") + std::string(character) + (is_last ? suffix_ : ""));
      at += length;
      if (id) {
        ids.push_back(*id);
      } else if (falls_back_ && add_bytes(character, ids)) {
        was_unknown = false;
        continue;
      } else if (unknown_ && !(fuses_unknown_ && was_unknown)) {
        ids.push_back(*unknown_);
      }
      was_unknown = !id;
    }
    return ids;
  }

  bool add_bytes(std::string_view character, std::vector<int>& ids) const {
    std::vector<int> bytes;
    for (const char byte : character) {
      const auto id = find(byte_token(static_cast<unsigned char>(byte)));
      if (!id) return false;
      bytes.push_back(*id);
    }
    ids.insert(ids.end(), bytes.begin(), bytes.end());
    return true;
  }

  Vocabulary vocabulary_;
  Symbols::Merges merges_;
  std::string prefix_, suffix_;
  bool falls_back_, fuses_unknown_, ignores_merges_;
  std::optional<int> unknown_;
};

}  // namespace

std::unique_ptr<WordModel> make_byte_pairs(const nlohmann::json& model) {
  return std::make_unique<BytePairs>(model);
}

}  // namespace troika::hub_tokenizer_plugin
