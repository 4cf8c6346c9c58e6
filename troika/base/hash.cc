#include <troika/base/bytes.h>
#include <troika/base/hash.h>

#include <algorithm>
#include <bit>

namespace troika {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ULL, kPrime2 = 0xC2B2AE3D27D4EB4FULL,
                        kPrime3 = 0x165667B19E3779F9ULL, kPrime4 = 0x85EBCA77C2B2AE63ULL,
                        kPrime5 = 0x27D4EB2F165667C5ULL;

std::uint64_t load64(const std::byte* at) {
  return from_little_endian<std::uint64_t>(std::span<const std::byte, 8>(at, 8));
}
std::uint64_t load32(const std::byte* at) {
  return from_little_endian<std::uint32_t>(std::span<const std::byte, 4>(at, 4));
}

std::uint64_t mix_lane(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

// The last 0 to 31 bytes: by eights, fours and ones.
std::uint64_t mix_tail(std::uint64_t hash, std::span<const std::byte> tail) {
  for (; tail.size() >= 8; tail = tail.subspan(8)) {
    hash = std::rotl(hash ^ mix_lane(0, load64(tail.data())), 27) * kPrime1 + kPrime4;
  }
  if (tail.size() >= 4) {
    hash = std::rotl(hash ^ (load32(tail.data()) * kPrime1), 23) * kPrime2 + kPrime3;
    tail = tail.subspan(4);
  }
  for (const std::byte byte : tail) {
    hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(byte) * kPrime5), 11) * kPrime1;
  }
  return hash;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

// kTable[k][b]: the remainder of byte b followed by k zero bytes (slicing by eight).
constexpr auto kCrcTable = [] {
  std::array<std::array<std::uint32_t, 256>, 8> table{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78U : 0U);
    table[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      table[k][b] = (table[k - 1][b] >> 8) ^ table[0][table[k - 1][b] & 0xFF];
    }
  }
  return table;
}();

}  // namespace

ContentHash::ContentHash(std::uint64_t seed)
    : lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1}, seed_(seed) {}

void ContentHash::consume(const std::byte* block) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i] = mix_lane(lanes_[i], load64(block + 8 * i));
  }
}

ContentHash& ContentHash::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (pending_size_ > 0) {
    const std::size_t taken = std::min(kBlock - pending_size_, bytes.size());
    std::copy_n(bytes.begin(), taken, pending_.begin() + pending_size_);
    pending_size_ += taken;
    bytes = bytes.subspan(taken);
    if (pending_size_ < kBlock) return *this;
    consume(pending_.data());
    pending_size_ = 0;
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) consume(bytes.data());
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
  pending_size_ = bytes.size();
  return *this;
}

ContentHash& ContentHash::update(std::string_view text) {
  return update(bytes_of(text));
}

std::uint64_t ContentHash::digest() const {
  std::uint64_t hash = seed_ + kPrime5;
  if (total_ >= kBlock) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ mix_lane(0, lane)) * kPrime1 + kPrime4;
  }
  return avalanche(mix_tail(hash + total_, std::span(pending_).first(pending_size_)));
}

std::uint64_t content_hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  return ContentHash(seed).update(bytes).digest();
}
std::uint64_t content_hash(std::string_view text, std::uint64_t seed) {
  return content_hash(bytes_of(text), seed);
}

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint64_t word = load64(bytes.data()) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kCrcTable[7 - i][(word >> (8 * i)) & 0xFF];
  }
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xFF];
  }
  return ~crc;
}

}  // namespace troika
