#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/data/sources/tokens/token_shard.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

namespace troika {
namespace {

static_assert(std::endian::native == std::endian::little, "token shards are read in place");

constexpr std::string_view kMagic = "TROIKATK";
constexpr std::uint32_t kVersion = 1, kMaskVersion = 2;
constexpr std::size_t kReservedBytes = 44;
constexpr std::size_t kChecksummed = kShardHeaderBytes - 8;

struct Sections {
  std::uint64_t tokens = 0;   // bytes, without the zeros behind
  std::uint64_t padding = 0;  // those zeros
  std::uint64_t mask = 0;     // with the zeros behind
  std::uint64_t begins = 0;
  std::uint64_t keys = 0;
  std::uint64_t file = 0;  // all of the file
};

// Nothing when the sizes do not fit 64 bits.
std::optional<Sections> sections_of(const TokenShardHeader& header) {
  Sections sections;
  const auto tokens = checked_mul(header.tokens, header.token_bytes);
  const auto keys = checked_mul(header.documents, std::uint64_t{8});
  if (!tokens || !keys) return std::nullopt;
  sections.tokens = *tokens;
  sections.padding = shard_padding(*tokens);
  if (header.has_mask) sections.mask = mask_bytes(header.tokens);
  sections.keys = *keys;
  std::optional<std::uint64_t> total = checked_add(*keys, std::uint64_t{8});
  if (!total) return std::nullopt;
  sections.begins = *total;
  total = std::uint64_t{kShardHeaderBytes};
  for (const std::uint64_t part :
       {sections.tokens, sections.padding, sections.mask, sections.begins, sections.keys}) {
    total = checked_add(*total, part);
    if (!total) return std::nullopt;
  }
  sections.file = *total;
  return sections;
}

template <class Token>
void widen(std::span<const std::byte> from, std::span<std::int64_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Token token;
    std::memcpy(&token, from.data() + i * sizeof(Token), sizeof(Token));
    to[i] = static_cast<std::int64_t>(token);
  }
}

}  // namespace

std::array<std::byte, kShardHeaderBytes> encode_header(const TokenShardHeader& header) {
  ByteWriter writer;
  writer.write_text(kMagic);
  writer.write(header.has_mask ? kMaskVersion : kVersion);
  writer.write(header.token_bytes);
  for (const std::uint64_t value :
       {header.vocab_size, header.documents, header.tokens, header.text_bytes, header.largest_id,
        header.separator, header.tokenizer}) {
    writer.write(value);
  }
  writer.write(std::uint32_t{header.separator_is_target ? 0U : 1U});
  writer.write_bytes(std::array<std::byte, kReservedBytes>{});
  writer.write(content_hash(writer.bytes()));
  std::array<std::byte, kShardHeaderBytes> bytes{};
  check(writer.bytes().size() == bytes.size(), "the header of a token shard has a wrong size");
  std::copy_n(writer.bytes().begin(), bytes.size(), bytes.begin());
  return bytes;
}

TokenShard::TokenShard(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)) {
  const std::uint64_t tokens =
      parse_head(bytes.first(std::min(bytes.size(), kShardHeaderBytes)), bytes.size());
  tokens_ = bytes.subspan(kShardHeaderBytes, tokens);
  take_tables(bytes.subspan(kShardHeaderBytes + tokens));
}

TokenShard::TokenShard(std::uint64_t size, ReadBytes read, std::string name)
    : name_(std::move(name)), read_(std::move(read)) {
  std::array<std::byte, kShardHeaderBytes> memory{};
  const auto head = std::span(memory).first(std::min<std::uint64_t>(size, kShardHeaderBytes));
  read_(0, head);
  const std::uint64_t tables = kShardHeaderBytes + parse_head(head, size);
  own_tables_.resize(size - tables);
  read_(tables, own_tables_);
  take_tables(own_tables_);
}

std::uint64_t TokenShard::parse_head(std::span<const std::byte> head, std::uint64_t size) {
  parse_header(head);
  check_header();
  const auto sections = sections_of(header_);
  if (!sections || size < sections->file) {
    fail("is truncated: it has " + std::to_string(size) + " bytes, its header says " +
             (sections ? std::to_string(sections->file) : "more than 2^64"),
         "copy it again, or write it again with `troika data prepare`");
  }
  if (size > sections->file) {
    fail("has " + std::to_string(size - sections->file) + " bytes too many at its end");
  }
  return sections->tokens;
}

void TokenShard::take_tables(std::span<const std::byte> bytes) {
  const auto sections = sections_of(header_);
  for (const std::byte b : bytes.first(sections->padding)) {
    if (b != std::byte{}) fail("has bytes behind its tokens that are not zero");
  }
  bytes = bytes.subspan(sections->padding);
  mask_ = bytes.first(sections->mask);
  check_mask();
  begins_ = bytes.subspan(sections->mask, sections->begins);
  keys_ = bytes.subspan(sections->mask + sections->begins, sections->keys);
  check_documents();
}

void TokenShard::parse_header(std::span<const std::byte> bytes) {
  if (text_of(bytes.first(std::min(bytes.size(), kMagic.size()))) != kMagic) {
    fail("is not a token shard: it does not begin with \"" + std::string(kMagic) + "\"",
         "data.kind = \"tokens\" reads what `troika data prepare` writes; text is "
         "data.kind = \"text\"");
  }
  if (bytes.size() < kShardHeaderBytes) {
    fail("is truncated: it has " + std::to_string(bytes.size()) + " bytes, less than a header");
  }
  ByteReader reader(bytes.first(kShardHeaderBytes), name_);
  reader.skip(kMagic.size());
  const auto version = reader.read<std::uint32_t>();
  if (version != kVersion && version != kMaskVersion) {
    fail("has version " + std::to_string(version) + ", this program reads versions " +
         std::to_string(kVersion) + " and " + std::to_string(kMaskVersion));
  }
  header_.has_mask = version == kMaskVersion;
  header_.token_bytes = reader.read<std::uint32_t>();
  for (std::uint64_t* value :
       {&header_.vocab_size, &header_.documents, &header_.tokens, &header_.text_bytes,
        &header_.largest_id, &header_.separator, &header_.tokenizer}) {
    *value = reader.read<std::uint64_t>();
  }
  const auto no_target = reader.read<std::uint32_t>();
  header_.separator_is_target = no_target == 0;
  const auto reserved = reader.take(kReservedBytes);
  if (reader.read<std::uint64_t>() != content_hash(bytes.first(kChecksummed))) {
    fail("has a damaged header: its checksum is wrong",
         "copy it again, or write it again with `troika data prepare`");
  }
  if (no_target > (header_.has_mask ? 1U : 0U) ||
      std::any_of(reserved.begin(), reserved.end(), [](std::byte b) { return b != std::byte{}; })) {
    fail("has a header with reserved bytes that are not zero");
  }
}

void TokenShard::check_header() const {
  const std::uint32_t width = header_.token_bytes;
  if (width != 1 && width != 2 && width != 4) {
    fail("says that a token has " + std::to_string(width) + " bytes, not 1, 2 or 4");
  }
  const std::uint64_t largest_vocabulary =
      width == 4 ? std::uint64_t{1} << 31 : std::uint64_t{1} << (8 * width);
  if (header_.vocab_size == 0 || header_.vocab_size > largest_vocabulary) {
    fail("says that the vocabulary has " + std::to_string(header_.vocab_size) +
         " ids, which tokens of " + std::to_string(width) + " bytes cannot tell apart");
  }
  for (const std::uint64_t id : {header_.largest_id, header_.separator}) {
    if (id >= header_.vocab_size) {
      fail("names the token id " + std::to_string(id) + " beyond its vocabulary of " +
           std::to_string(header_.vocab_size));
    }
  }
  if (header_.documents == 0 || header_.tokens == 0) fail("holds no tokens");
}

void TokenShard::check_mask() const {
  if (mask_.empty()) return;
  for (std::uint64_t bit = header_.tokens; bit < mask_.size() * 8; ++bit) {
    if ((std::to_integer<unsigned>(mask_[bit / 8]) >> (bit % 8) & 1U) == 0) continue;
    fail("has bits behind its mask that are not zero");
  }
}

void TokenShard::check_documents() const {
  if (entry(begins_, 0) != 0) fail("has a first document that does not begin at token 0");
  std::uint64_t before = 0;
  for (std::uint64_t document = 1; document <= header_.documents; ++document) {
    const std::uint64_t begin = entry(begins_, document);
    if (begin < before || begin > header_.tokens) {
      fail("has documents out of order: document " + std::to_string(document - 1) +
           " is from token " + std::to_string(before) + " to " + std::to_string(begin) + " of " +
           std::to_string(header_.tokens));
    }
    before = begin;
  }
  if (before != header_.tokens) {
    fail("has documents that end at token " + std::to_string(before) + " of " +
         std::to_string(header_.tokens));
  }
}

void TokenShard::read(std::uint64_t document, std::uint64_t first,
                      std::span<std::int64_t> out) const {
  check(document < header_.documents && first <= length(document) &&
            out.size() <= length(document) - first,
        "a read outside a document of a token shard");
  const std::uint64_t width = header_.token_bytes;
  const std::uint64_t offset = (entry(begins_, document) + first) * width;
  std::vector<std::byte> read;
  std::span<const std::byte> bytes;
  if (read_) {
    read.resize(out.size() * width);
    read_(kShardHeaderBytes + offset, read);
    bytes = read;
  } else {
    bytes = tokens_.subspan(offset, out.size() * width);
  }
  if (width == 1) return widen<std::uint8_t>(bytes, out);
  if (width == 2) return widen<std::uint16_t>(bytes, out);
  widen<std::uint32_t>(bytes, out);
}

void TokenShard::read_mask(std::uint64_t document, std::uint64_t first, std::span<char> out) const {
  check(document < header_.documents && first <= length(document) &&
            out.size() <= length(document) - first,
        "a read outside a document of a token shard");
  if (mask_.empty()) {
    std::ranges::fill(out, 1);
    return;
  }
  const std::uint64_t begin = entry(begins_, document) + first;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bit = begin + i;
    out[i] = (std::to_integer<unsigned>(mask_[bit / 8]) >> (bit % 8) & 1U) != 0 ? 1 : 0;
  }
}

std::uint64_t TokenShard::entry(std::span<const std::byte> table, std::uint64_t index) {
  std::uint64_t value = 0;
  std::memcpy(&value, table.data() + index * sizeof(value), sizeof(value));
  return value;
}

void TokenShard::fail(const std::string& what, std::string hint) const {
  throw DataError("the token shard " + shown_path(name_) + " " + what, std::move(hint));
}

}  // namespace troika
