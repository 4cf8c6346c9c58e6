#include <troika/base/bytes.h>
#include <troika/base/error.h>

namespace troika {

std::span<const std::byte> ByteReader::take(std::uint64_t count) {
  if (count > remaining()) {
    fail("truncated: needs " + std::to_string(count) + " more bytes, has " +
         std::to_string(remaining()));
  }
  const auto taken = bytes_.subspan(position_, count);
  position_ += count;
  return taken;
}

ByteReader ByteReader::sub_reader(std::uint64_t count) {
  const std::uint64_t start = offset();
  ByteReader part(take(count), source_);
  part.base_ = start;
  return part;
}

void ByteReader::fail(std::string_view message) const {
  throw DataError(source_ + ": " + std::string(message) + " at byte " + std::to_string(offset()));
}

void ByteWriter::pad_to(std::size_t alignment, std::byte filler) {
  const std::size_t over = bytes_.size() % alignment;
  if (over != 0) bytes_.resize(bytes_.size() + alignment - over, filler);
}

}  // namespace troika
