// Fuzz target: readers of bytes, quoting and hashes of base/ take any input.
#include <fuzz/fuzz.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>

#include <algorithm>
#include <array>

namespace troika {
namespace {

// Reads values as the first half of the input says from the second half.
void read_by_script(std::span<const std::byte> input) {
  const auto script = input.first(input.size() / 2), content = input.subspan(input.size() / 2);
  ByteReader reader(content, "input");
  for (const std::byte step : script) {
    const std::uint64_t before = reader.remaining();
    const auto size = std::to_integer<std::uint64_t>(step >> 3);
    std::uint64_t expected = 0;
    try {
      switch (std::to_integer<int>(step & std::byte{7})) {
        case 0:
          expected = 1, static_cast<void>(reader.read<std::uint8_t>());
          break;
        case 1:
          expected = 2, static_cast<void>(reader.read<std::int16_t>());
          break;
        case 2:
          expected = 4, static_cast<void>(reader.read<float>());
          break;
        case 3:
          expected = 8, static_cast<void>(reader.read<double>());
          break;
        case 4:
          expected = size, reader.skip(size);
          break;
        case 5:
          expected = size, require(reader.take(size).size() == size, "take gives what was asked");
          break;
        case 6:
          expected = size, reader.sub_reader(size).skip(size);
          break;
        default:
          expected = ~size, reader.skip(~size);
      }
      require(reader.remaining() == before - expected, "a read moves by its size");
    } catch (const DataError& error) {
      require_one_line(error.what());
      require(expected > before && reader.remaining() == before, "a refused read moves nothing");
    }
  }
}

void quote_any(std::span<const std::byte> input) {
  for (const std::size_t limit : {std::size_t{0}, std::size_t{5}, std::size_t{80}}) {
    const std::string quoted = quote(text_of(input), limit);
    require_one_line(quoted);
    require(quoted.size() <= 4 * limit + 5, "a quotation is bounded");
    require(quoted.front() == '\'' && quoted.back() == '\'', "a quotation has quotes");
  }
  static constexpr std::array<std::string_view, 3> kWords{"steps", "global_batch_size", "lr"};
  if (const auto near = nearest(text_of(input), kWords)) {
    require(std::find(kWords.begin(), kWords.end(), *near) != kWords.end(), "a known word");
  }
}

void hash_in_pieces(std::span<const std::byte> input) {
  if (input.empty()) return;
  const std::size_t cut = std::to_integer<std::size_t>(input[0]) % input.size();
  const auto first = input.first(cut), rest = input.subspan(cut);
  require(ContentHash().update(first).update(rest).digest() == content_hash(input), "one hash");
  require(crc32c(rest, crc32c(first)) == crc32c(input), "one checksum");
}

}  // namespace
}  // namespace troika

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = troika::as_span(data, size);
  troika::read_by_script(input);
  troika::quote_any(input);
  troika::hash_in_pieces(input);
  return 0;
}
