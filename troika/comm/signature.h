// The signature of an operation: one number for what all members of a group must have in common to
// be in the same operation. It is equal on every member, whatever its machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace troika {

// The name of an operation, hashed at compile time: FNV-1a (Fowler, Noll and Vo).
class OperationName {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is what it is written as.
  consteval OperationName(const char* text) : text_(text) {
    for (const char c : text_) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  std::string_view text_;
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

// Returns the signature of an operation, and of `more` where there is more (a root, a reduction).
[[nodiscard]] std::uint64_t signature_of(OperationName operation, std::uint64_t more);
// Adds a tensor to the signature, of the same size and type on all members.
[[nodiscard]] std::uint64_t signature_of(OperationName operation, const at::Tensor& tensor,
                                         std::uint64_t more = 0);
// Adds the counts by which the tensor is cut to the signature.
[[nodiscard]] std::uint64_t signature_of(OperationName operation, const at::Tensor& tensor,
                                         std::span<const std::int64_t> counts,
                                         std::uint64_t more = 0);

}  // namespace troika
