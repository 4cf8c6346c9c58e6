// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// Computes one digest. Not thread safe.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept = default;
  Sha256& operator=(Sha256&&) noexcept = default;
  ~Sha256() = default;

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text);
  // Returns 64 lower-case hexadecimal digits, of all bytes so far. Call it once, and add nothing
  // afterwards.
  [[nodiscard]] std::string digest();

 private:
  struct Free {
    void operator()(void* context) const noexcept;
  };
  std::unique_ptr<void, Free> context_;
};

[[nodiscard]] std::string sha256(std::span<const std::byte> bytes);

}  // namespace troika
