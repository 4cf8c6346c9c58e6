#include <troika/base/archive_directory.h>
#include <troika/base/bytes.h>
#include <troika/base/error.h>
#include <troika/base/text.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace troika {
namespace {

constexpr std::uint32_t kHeaderMark = 0x04034b50, kRecordMark = 0x02014b50, kEndMark = 0x06054b50,
                        kEnd64Mark = 0x06064b50, kLocatorMark = 0x07064b50;
constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kMostComment = 0xFFFF;
// Stands for a number that the field of 64 bits has.
constexpr std::uint32_t kInField64 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint16_t kField64 = 0x0001, kEncrypted = 0x0001;

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

// Takes over what the extra fields of a record have in place of fields of 32 bits.
void take_field64(ByteReader fields, ArchiveRecord& record, bool has_packed_size) {
  const bool has_size = record.size == kInField64, has_offset = record.offset == kInField64;
  if (!has_size && !has_offset) return;
  while (fields.remaining() >= 4) {
    const auto id = fields.read<std::uint16_t>();
    ByteReader field = fields.sub_reader(fields.read<std::uint16_t>());
    if (id != kField64) continue;
    if (has_size) record.size = field.read<std::uint64_t>();
    if (has_packed_size && field.remaining() >= 8) field.skip(8);
    if (has_offset) record.offset = field.read<std::uint64_t>();
    return;
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
    reader.skip(4);
    const auto flags = reader.read<std::uint16_t>(), method = reader.read<std::uint16_t>();
    reader.skip(4);
    ArchiveRecord record;
    record.crc32 = reader.read<std::uint32_t>();
    const auto packed_size = reader.read<std::uint32_t>();
    record.size = reader.read<std::uint32_t>();
    record.is_plain = method == 0 && (flags & kEncrypted) == 0 && packed_size == record.size;
    const auto name = reader.read<std::uint16_t>(), extra = reader.read<std::uint16_t>(),
               comment = reader.read<std::uint16_t>();
    reader.skip(8);
    record.offset = reader.read<std::uint32_t>();
    record.name = text_of(reader.take(name));
    take_field64(reader.sub_reader(extra), record, packed_size == kInField64);
    reader.skip(comment);
    records.push_back(std::move(record));
  }
  return records;
}

std::span<const std::byte> content_of(std::span<const std::byte> archive,
                                      const ArchiveRecord& record, const std::string& source) {
  const std::string title = source + ": record " + quote(record.name, 200);
  if (!record.is_plain) throw DataError(title + " is compressed");
  ByteReader reader(archive, title);
  reader.skip(record.offset);
  if (reader.read<std::uint32_t>() != kHeaderMark) reader.fail("no header of a record");
  reader.skip(22);
  const auto name = reader.read<std::uint16_t>(), extra = reader.read<std::uint16_t>();
  reader.skip(std::uint64_t{name} + extra);
  return reader.take(record.size);
}

}  // namespace troika
