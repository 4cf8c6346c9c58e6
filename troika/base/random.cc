#include <troika/base/philox.h>
#include <troika/base/random.h>

#include <cmath>
#include <numbers>

namespace troika {
namespace {

// The C library's log and cos pick other instructions, and other last bits, on other processors.
// These two use only operations that IEEE 754 rounds exactly, to a few units in the last place.

// Natural logarithm of a normal positive number: 2 atanh((m - 1) / (m + 1)) + exponent ln 2.
double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < std::numbers::sqrt2 / 2) {
    mantissa *= 2;
    --exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return 2 * s * series + exponent * std::numbers::ln2;
}

// cos(2 pi v) for v in [0, 1): Taylor series after folding into a quarter turn.
double portable_cos_turn(double v) {
  double turn = v > 0.5 ? 1.0 - v : v;  // cos is even around a half turn
  const bool negate = turn > 0.25;
  if (negate) turn = 0.5 - turn;
  const double x = 2 * std::numbers::pi * turn, square = x * x;
  double series = 1;
  for (int k = 20; k >= 2; k -= 2) series = 1 - series * square / (k * (k - 1));
  return negate ? -series : series;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_high,
                                    std::uint64_t counter_low) {
  const auto words = philox_lanes<1>(key, counter_high, {counter_low});
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

std::uint64_t mix_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return mix_bits(mix_bits(seed + 0x9E3779B97F4A7C15ULL) ^ hash);
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const auto words = philox(key_, substream_, index);
  return static_cast<std::uint64_t>(words[1]) << 32 | words[0];
}

double RandomStream::uniform(std::uint64_t index) const {
  return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
}

std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

double RandomStream::normal(std::uint64_t index) const {
  const auto words = philox(key_, substream_, index);
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const std::uint64_t first = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
  const std::uint64_t second = static_cast<std::uint64_t>(words[3]) << 32 | words[2];
  const double u = 1.0 - static_cast<double>(first >> 11) * 0x1.0p-53;
  const double v = static_cast<double>(second >> 11) * 0x1.0p-53;
  return std::sqrt(-2.0 * portable_log(u)) * portable_cos_turn(v);
}

}  // namespace troika
