// Reads the directory at the end of a ZIP archive, as PyTorch writes TorchScript and exported
// programs: names, sizes and checksums of its records. The records themselves are not read, so it
// takes as long for a large model as for a small one. Format: PKWARE, APPNOTE.TXT 6.3.10,
// sections 4.3.12 to 4.3.16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace troika {

struct ArchiveRecord {
  std::string name;
  std::uint64_t size = 0;   // of its content
  std::uint32_t crc32 = 0;  // of its content; 0 where the writer has left it out
  // Where its own header begins, and whether its content stands behind that as it is, neither
  // compressed nor encrypted.
  std::uint64_t offset = 0;
  bool is_plain = false;
};

// Returns whether the bytes begin as an archive does.
[[nodiscard]] bool is_archive(std::span<const std::byte> bytes);

// Returns the records of a whole archive, in the order of the directory. Throws DataError naming
// `source`, the file's name in messages.
[[nodiscard]] std::vector<ArchiveRecord> read_archive_directory(std::span<const std::byte> archive,
                                                                const std::string& source);

// Returns a view of the content of a record. Throws DataError naming `source` where it is not
// plain, or lies outside of the archive.
[[nodiscard]] std::span<const std::byte> content_of(std::span<const std::byte> archive,
                                                    const ArchiveRecord& record,
                                                    const std::string& source);

}  // namespace troika
