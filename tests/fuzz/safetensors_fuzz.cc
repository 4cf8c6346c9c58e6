// Fuzz target: any bytes are a safetensors file, whose tensors lie inside of it, or a DataError.
#include <fuzz/fuzz.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/checkpoint/safetensors_header.h>

#include <algorithm>
#include <optional>

namespace troika {
namespace {

std::optional<SafetensorsHeader> parse(std::span<const std::byte> file) {
  try {
    return parse_safetensors(file, "input");
  } catch (const DataError& error) {
    require_one_line(error.what());
    return std::nullopt;
  }
}

void check_accepted(const SafetensorsHeader& header, std::span<const std::byte> file) {
  require(header.data_begin <= file.size(), "the data begin inside the file");
  const std::uint64_t data = file.size() - header.data_begin;
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : header.entries) {
    require(entry.begin == covered && entry.end >= entry.begin, "data lie one after another");
    require(tensor_bytes(entry.type, entry.shape) == entry.bytes(), "sizes match shapes");
    covered = entry.end;
  }
  require(covered == data, "data fill the file");
}

// What was read can be written, and reads the same again.
void check_round_trip(const SafetensorsHeader& header) {
  std::vector<TensorEntry> entries = lay_out_safetensors(header.entries);
  std::string file = format_safetensors_header(entries, header.metadata);
  for (const TensorEntry& entry : entries) file.append(entry.bytes(), 'x');
  const auto again = parse(bytes_of(file));
  require(again.has_value(), "what was written reads");
  require(again->metadata == header.metadata, "metadata survive");
  auto read = again->entries;
  const auto by_name = [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; };
  std::sort(read.begin(), read.end(), by_name);
  std::sort(entries.begin(), entries.end(), by_name);
  require(read == entries, "entries survive");
}

void run(std::span<const std::byte> file) {
  const auto header = parse(file);
  if (!header) return;
  check_accepted(*header, file);
  check_round_trip(*header);
}

}  // namespace
}  // namespace troika

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troika;
  const auto input = as_span(data, size);
  run(input);
  // The same with a length that fits, so that most inputs get as far as the JSON: the text up to
  // the first zero byte is the header, the rest the data.
  const auto zero = std::find(input.begin(), input.end(), std::byte{0});
  ByteWriter framed;
  framed.write<std::uint64_t>(static_cast<std::uint64_t>(zero - input.begin()));
  framed.write_bytes({input.begin(), zero});
  if (zero != input.end()) framed.write_bytes({zero + 1, input.end()});
  run(framed.bytes());
  return 0;
}
