#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/models/torchscript/archive_directory.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace troika {
namespace {

constexpr std::uint32_t kRecordMark = 0x02014b50, kEndMark = 0x06054b50, kEnd64Mark = 0x06064b50,
                        kLocatorMark = 0x07064b50;
constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kMostComment = 0xFFFF;
// Stands for a number that the field of 64 bits has.
constexpr std::uint32_t kInField64 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint16_t kField64 = 0x0001;

std::uint32_t mark_at(std::span<const std::byte> archive, std::size_t offset) {
  return from_little_endian<std::uint32_t>(archive.subspan(offset).first<4>());
}

// The end of the directory is the last thing in a file, but for a comment.
std::optional<std::size_t> find_end(std::span<const std::byte> archive) {
  if (archive.size() < kEndBytes) return std::nullopt;
  const std::size_t last = archive.size() - kEndBytes;
  const std::size_t first = last - std::min(last, kMostComment);
  for (std::size_t offset = last + 1; offset-- > first;) {
    if (mark_at(archive, offset) == kEndMark) return offset;
  }
  return std::nullopt;
}

struct Extent {
  std::uint64_t records = 0;
  std::uint64_t offset = 0;
};

// Archives of more than 4 GB have the extent in a second structure, which a locator before the end
// points to.
Extent extent64(std::span<const std::byte> archive, std::size_t end, const std::string& source) {
  ByteReader locator(archive.subspan(end - kLocatorBytes), source);
  locator.skip(8);
  const auto offset = locator.read<std::uint64_t>();
  ByteReader reader(archive, source);
  reader.skip(offset);
  if (reader.read<std::uint32_t>() != kEnd64Mark) reader.fail("no end of the archive's directory");
  reader.skip(28);
  const auto records = reader.read<std::uint64_t>();
  reader.skip(8);
  return {records, reader.read<std::uint64_t>()};
}

Extent extent_of(std::span<const std::byte> archive, const std::string& source) {
  const std::optional<std::size_t> end = find_end(archive);
  if (!end) throw DataError(source + " is cut short: it has no directory of an archive");
  if (*end >= kLocatorBytes && mark_at(archive, *end - kLocatorBytes) == kLocatorMark) {
    return extent64(archive, *end, source);
  }
  ByteReader reader(archive.subspan(*end), source);
  reader.skip(10);
  const auto records = reader.read<std::uint16_t>();
  reader.skip(4);
  return {records, reader.read<std::uint32_t>()};
}

// The size that the extra fields of a record have.
std::uint64_t size64(ByteReader fields) {
  while (fields.remaining() >= 4) {
    const auto id = fields.read<std::uint16_t>();
    ByteReader field = fields.sub_reader(fields.read<std::uint16_t>());
    if (id == kField64) return field.read<std::uint64_t>();
  }
  fields.fail("a record without its size");
}

}  // namespace

bool is_archive(std::span<const std::byte> bytes) {
  return text_of(bytes.first(std::min<std::size_t>(4, bytes.size()))) == "PK\x03\x04";
}

std::vector<ArchiveRecord> read_archive_directory(std::span<const std::byte> archive,
                                                  const std::string& source) {
  const Extent extent = extent_of(archive, source);
  ByteReader reader(archive, source);
  reader.skip(extent.offset);
  std::vector<ArchiveRecord> records;
  for (std::uint64_t i = 0; i < extent.records; ++i) {
    if (reader.read<std::uint32_t>() != kRecordMark) reader.fail("no record of a directory");
    reader.skip(12);
    ArchiveRecord record;
    record.crc32 = reader.read<std::uint32_t>();
    reader.skip(4);
    const auto size = reader.read<std::uint32_t>();
    const auto name = reader.read<std::uint16_t>(), extra = reader.read<std::uint16_t>(),
               comment = reader.read<std::uint16_t>();
    reader.skip(12);
    record.name = text_of(reader.take(name));
    const ByteReader fields = reader.sub_reader(extra);
    record.size = size == kInField64 ? size64(fields) : size;
    reader.skip(comment);
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace troika
