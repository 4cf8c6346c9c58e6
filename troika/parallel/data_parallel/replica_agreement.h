// Internal. What the copies of a module on all ranks must have in common, and how a difference is
// told: on every rank, in the same words. Everything here is collective.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/param/named_tensor.h>
#include <troika/session/consensus.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// An error that a rank finds: one line, and one with the remedy. Empty if there is none.
struct ValidationError {
  std::string text = {};
  std::string hint = {};
};

// Returns the error of a parameter or buffer (`kind`) whose values broadcast_tensors() could not
// read, or write to.
[[nodiscard]] ValidationError validate_tensor(std::string_view kind, const NamedTensor& named);

// Returns the texts of the ranks, empty ones left out, each with the ranks that have it.
std::map<std::string, std::vector<int>> ranks_by_text(const std::vector<std::string>& all);

// Throws UsageError on every rank if any rank has an error. The message names the ranks with each
// error, and gives the hint of the first.
void throw_on_all_ranks(const Session& session, const ValidationError& own, std::string_view label);

// Throws UsageError naming the first parameter or buffer that is not of the same name, shape, dtype
// and kind on all ranks.
void compare_modules(const Session& session, std::span<const NamedTensor> parameters,
                     std::span<const NamedTensor> buffers);

// Gives all ranks the values of `root`. All writes count as writes in place.
void broadcast_tensors(const Session& session, std::span<const NamedTensor> tensors, int root);

}  // namespace troika::detail
