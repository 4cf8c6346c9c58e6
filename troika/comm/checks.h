// The checks that every operation of a Group makes on its arguments before an engine sees them, so
// that a mistake is the same UsageError on every engine and on one rank.
#pragma once

#include <troika/comm/group.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika::detail {

// Returns the dtype's name, a literal such as "fp32" or "int64". Empty for a dtype that groups do
// not carry.
[[nodiscard]] std::string_view name_of(at::ScalarType dtype);

// Checks the arguments of an operation. Every check throws UsageError "all_reduce 'label': ...".
class ArgumentCheck {
 public:
  // `engine` may be null: a group of one takes tensors of any device.
  ArgumentCheck(std::string_view operation, const Call& call, int size, const GroupEngine* engine)
      : operation_(operation), label_(call.label), size_(size), engine_(engine) {}

  // Requires a tensor that is defined, strided and contiguous, of a dtype that groups carry, on a
  // device that the engine accepts.
  void tensor(const at::Tensor& tensor, std::string_view name) const;
  void same_dtype(const at::Tensor& output, const at::Tensor& input) const;
  void reduction(const at::Tensor& tensor, ReduceOp op) const;
  void member(int index, std::string_view name) const;
  void elements(const at::Tensor& tensor, std::string_view name, std::int64_t expected) const;
  // Requires one count for each member, none negative. Returns their sum.
  std::int64_t counts(std::span<const std::int64_t> counts, std::string_view name) const;
  // Returns `counts`, or equal parts of `whole` where `counts` is empty.
  [[nodiscard]] std::vector<std::int64_t> counts_or_equal(std::span<const std::int64_t> counts,
                                                          const at::Tensor& whole,
                                                          std::string_view name) const;
  // Requires that `part` shares no memory with `whole`, unless it is exactly the elements from
  // `own` on.
  void apart_or_own(const at::Tensor& part, const at::Tensor& whole, std::int64_t own) const;
  void apart(const at::Tensor& output, const at::Tensor& input) const;
  // Requires that a received tensor shares no memory with any other tensor of the same exchange.
  void apart(std::span<const Transfer> transfers) const;

  [[noreturn]] void refuse(const std::string& why, std::string hint = {}) const;

 private:
  std::string_view operation_;
  std::string_view label_;
  int size_;
  const GroupEngine* engine_;
};

}  // namespace troika::detail
