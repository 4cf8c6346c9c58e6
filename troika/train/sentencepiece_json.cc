#include <troika/train/sentencepiece_json.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace troika {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpace = "\xE2\x96\x81";  // U+2581, by which pieces write a space

// One field of a protocol buffer's message.
struct Field {
  int number = 0;
  std::uint64_t value = 0;  // of a number
  std::string_view bytes;   // of a text or a message

  [[nodiscard]] float as_float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value));
  }
};

// Reads the fields of a message in order. What is no message ends it early.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  std::optional<Field> next() {
    constexpr std::uint64_t kVarint = 0, kEight = 1, kBytes = 2, kFour = 5;
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{.number = static_cast<int>(*key >> 3U), .value = 0, .bytes = {}};
    const std::uint64_t wire = *key & 7U;
    if (wire == kVarint || wire == kBytes) {
      const auto number = varint();
      if (!number) return std::nullopt;
      field.value = *number;
      if (wire == kVarint) return field;
    } else if (wire != kEight && wire != kFour) {
      return std::nullopt;
    }
    const std::uint64_t size = wire == kBytes ? field.value : wire == kFour ? 4 : 8;
    if (size > rest_.size()) return std::nullopt;
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (wire != kBytes) std::memcpy(&field.value, field.bytes.data(), size);
    return field;
  }

 private:
  std::optional<std::uint64_t> varint() {
    constexpr unsigned kBits = 7, kMost = 64;
    std::uint64_t number = 0;
    for (unsigned shift = 0; shift < kMost && !rest_.empty(); shift += kBits) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      number |= std::uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80U) == 0) return number;
    }
    return std::nullopt;
  }

  std::string_view rest_;
};

enum class PieceType : std::uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct PieceModel {
  std::vector<Piece> pieces;
  bool is_byte_pairs = false;
  bool has_byte_fallback = false;
  bool adds_prefix = true;
  bool removes_spaces = true;
  bool normalises = false;
};

Piece parse_piece(std::string_view message) {
  Piece piece;
  FieldReader fields(message);
  while (const auto field = fields.next()) {
    if (field->number == 1) piece.text = field->bytes;
    if (field->number == 2) piece.score = field->as_float();
    if (field->number == 3) piece.type = static_cast<PieceType>(field->value);
  }
  return piece;
}

void parse_trainer(std::string_view message, PieceModel& model) {
  constexpr int kModelType = 3, kByteFallback = 35;
  constexpr std::uint64_t kBytePairs = 2;
  FieldReader fields(message);
  while (const auto field = fields.next()) {
    if (field->number == kModelType) model.is_byte_pairs = field->value == kBytePairs;
    if (field->number == kByteFallback) model.has_byte_fallback = field->value != 0;
  }
}

void parse_normalizer(std::string_view message, PieceModel& model) {
  constexpr int kRules = 2, kDummyPrefix = 3, kExtraSpaces = 4;
  FieldReader fields(message);
  while (const auto field = fields.next()) {
    if (field->number == kRules) model.normalises = !field->bytes.empty();
    if (field->number == kDummyPrefix) model.adds_prefix = field->value != 0;
    if (field->number == kExtraSpaces) model.removes_spaces = field->value != 0;
  }
}

PieceModel parse_model(std::string_view message) {
  constexpr int kPiece = 1, kTrainer = 2, kNormalizer = 3;
  PieceModel model;
  FieldReader fields(message);
  while (const auto field = fields.next()) {
    if (field->number == kPiece) model.pieces.push_back(parse_piece(field->bytes));
    if (field->number == kTrainer) parse_trainer(field->bytes, model);
    if (field->number == kNormalizer) parse_normalizer(field->bytes, model);
  }
  return model;
}

bool is_known_type(const Piece& piece) {
  return piece.type == PieceType::kNormal || piece.type == PieceType::kUnknown ||
         piece.type == PieceType::kControl || piece.type == PieceType::kByte;
}

// SentencePiece joins the two neighbours whose piece has the best score; here each pair that makes
// a piece has a rank.
Json merges_of(const std::vector<Piece>& pieces) {
  std::map<std::string_view, std::size_t> ids;
  std::vector<const Piece*> by_score;
  for (const Piece& piece : pieces) {
    if (piece.type != PieceType::kNormal) continue;
    ids.emplace(piece.text, by_score.size());
    by_score.push_back(&piece);
  }
  std::ranges::stable_sort(by_score, std::ranges::greater(), &Piece::score);
  Json merges = Json::array();
  for (const Piece* piece : by_score) {
    const std::string_view text = piece->text;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const bool is_inside_character = (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U;
      const auto left = text.substr(0, cut), right = text.substr(cut);
      if (!is_inside_character && ids.contains(left) && ids.contains(right)) {
        merges.push_back({left, right});
      }
    }
  }
  return merges;
}

Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Json normalizer_of(const PieceModel& model) {
  Json steps = Json::array();
  if (model.adds_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  steps.push_back(replace(" ", kSpace));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

Json decoder_of(const PieceModel& model) {
  Json steps = Json::array({replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (model.adds_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

}  // namespace

std::optional<std::string> sentencepiece_json(std::string_view file) {
  const PieceModel model = parse_model(file);
  if (!model.is_byte_pairs || model.normalises || model.removes_spaces ||
      !std::ranges::all_of(model.pieces, is_known_type)) {
    return std::nullopt;
  }
  Json vocabulary = Json::object();
  Json unknown = nullptr;
  for (const Piece& piece : model.pieces) {
    if (piece.type == PieceType::kUnknown) unknown = piece.text;
    const std::size_t id = vocabulary.size();
    vocabulary[piece.text] = id;
  }
  if (vocabulary.size() != model.pieces.size()) return std::nullopt;
  constexpr int kIndent = 2;
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array()},
              {"normalizer", normalizer_of(model)},
              {"pre_tokenizer", nullptr},
              {"post_processor", nullptr},
              {"decoder", decoder_of(model)},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", unknown},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", true},
                {"byte_fallback", model.has_byte_fallback},
                {"vocab", vocabulary},
                {"merges", merges_of(model.pieces)}}}}
             .dump(kIndent) +
         "\n";
}

}  // namespace troika
