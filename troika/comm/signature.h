// What all members of a group must have in common to be in the same operation, as one number: equal
// on every member, whatever its machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace troika {

// Of an operation, and of what else (a root, a reduction) there is.
[[nodiscard]] std::uint64_t signature_of(std::string_view operation, std::uint64_t more);
// And of a tensor of the same size and type on all members.
[[nodiscard]] std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                                         std::uint64_t more = 0);
// And of how it is cut.
[[nodiscard]] std::uint64_t signature_of(std::string_view operation, const at::Tensor& tensor,
                                         std::span<const std::int64_t> counts,
                                         std::uint64_t more = 0);

}  // namespace troika
