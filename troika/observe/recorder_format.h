// The bytes of a flight recorder's file, as recorder.h documents them, for its writer and reader.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troika::recorder_format {

static_assert(std::endian::native == std::endian::little, "the file is written as it is in memory");

inline constexpr std::string_view kMagic = "TRKFLT01";
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kMaxCapacity = 65536;

enum class RecordState : std::uint32_t { kEmpty = 0, kRunning = 1, kFinished = 2, kFailed = 3 };

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t record_bytes;
  std::uint32_t capacity;
  std::int32_t rank;
  std::int32_t process_id;
  std::uint64_t count;
  std::int64_t created;
  char host[64];
  char zeros[144];
};
static_assert(sizeof(Header) == 256 && offsetof(Header, count) == 32 &&
              offsetof(Header, host) == 48);

struct Record {
  std::uint64_t sequence;
  std::uint32_t state;
  std::uint32_t steps;
  std::int64_t started;
  std::int64_t finished;
  std::uint64_t bytes;
  std::uint64_t sent;
  std::uint64_t place;
  std::uint32_t generation;
  std::uint32_t group;
  std::uint64_t signature;
  std::int64_t elements;
  char dtype[8];
  char operation[16];
  char axis[24];
  char label[64];
};
static_assert(sizeof(Record) == 192 && offsetof(Record, started) == 16 &&
              offsetof(Record, place) == 48 && offsetof(Record, group) == 60 &&
              offsetof(Record, operation) == 88 && offsetof(Record, label) == 128);

[[nodiscard]] inline std::size_t file_size(std::uint32_t capacity) {
  return sizeof(Header) + std::size_t{capacity} * sizeof(Record);
}

// Returns a text as a reader finds it in a field of `bytes`. It ends at the first zero, and has a
// question mark for what a terminal should not be sent.
[[nodiscard]] inline std::string as_read(std::string_view text, std::size_t bytes) {
  text = text.substr(0, bytes);
  std::string read(text.substr(0, text.find('\0')));
  std::replace_if(
      read.begin(), read.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return read;
}

}  // namespace troika::recorder_format
