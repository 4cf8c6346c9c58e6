// What the fuzz targets share. A target is one file, <name>_fuzz.cc, that defines
// LLVMFuzzerTestOneInput for libFuzzer (clang, preset "fuzz"); other compilers build it with
// corpus_driver.cc into an ordinary test over corpus/<name>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

// Runs one input; returns 0. Any exception that leaves it is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace troika {

// A property that an input broke.
class FuzzFinding : public std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool condition, const std::string& property) {
  if (!condition) throw FuzzFinding("broken: " + property);
}

// Errors are one line without control characters, and no longer than a few terminal lines.
inline void require_one_line(std::string_view message) {
  require(!message.empty() && message.size() < 2000, "an error is short");
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    require(byte >= 0x20 && byte != 0x7F, "an error is one printable line");
  }
}

inline std::span<const std::byte> as_span(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace troika
