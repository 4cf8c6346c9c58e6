// Fuzz target: any bytes are a shard of tokens, whose documents lie inside of it, or a DataError.
#include <fuzz/fuzz.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/data/sources/tokens/token_shard.h>

#include <algorithm>
#include <vector>

namespace troika {
namespace {

// Reads every token of every document: all of them must lie inside the bytes, which the address
// sanitizer watches.
void check_accepted(const TokenShard& shard, std::span<const std::byte> file) {
  const TokenShardHeader& header = shard.header();
  require(header.documents <= file.size() && header.tokens <= file.size(), "sizes fit the file");
  const auto encoded = encode_header(header);
  require(std::equal(encoded.begin(), encoded.end(), file.begin()), "the header survives");
  std::uint64_t tokens = 0, keys = 0;
  std::vector<std::int64_t> ids;
  for (std::uint64_t document = 0; document < header.documents; ++document) {
    const std::uint64_t length = shard.length(document);
    require(length <= header.tokens - tokens, "documents do not overlap");
    tokens += length;
    keys ^= shard.key(document);
    ids.resize(length);
    shard.read(document, 0, ids);
    const std::uint64_t half = length / 2;
    std::vector<std::int64_t> tail(length - half);
    shard.read(document, half, tail);
    require(
        std::equal(tail.begin(), tail.end(), ids.end() - static_cast<std::ptrdiff_t>(tail.size())),
        "a part reads as in the whole");
    for (const std::int64_t id : ids) require(id >= 0, "ids are not negative");
    std::vector<char> mask(length);
    shard.read_mask(document, 0, mask);
    for (const char each : mask) require(each == 0 || each == 1, "a token is a target or none");
  }
  require(tokens == header.tokens, "documents fill the tokens");
  static_cast<void>(keys);
}

void run(std::span<const std::byte> file) {
  try {
    check_accepted(TokenShard(file, "input"), file);
  } catch (const DataError& error) {
    require_one_line(error.what());
  }
}

}  // namespace
}  // namespace troika

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troika;
  const auto input = as_span(data, size);
  run(input);
  if (size < kShardHeaderBytes) return 0;
  // The same with a checksum that fits, so that inputs get behind it.
  std::vector<std::byte> repaired(input.begin(), input.end());
  const std::span<std::byte> header = std::span(repaired).first(kShardHeaderBytes);
  const auto sum = to_little_endian(content_hash(header.first(kShardHeaderBytes - 8)));
  std::copy(sum.begin(), sum.end(), header.end() - 8);
  run(repaired);
  return 0;
}
