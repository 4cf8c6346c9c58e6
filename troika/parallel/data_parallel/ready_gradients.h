// Internal. Which parameters have got their gradient in the backward pass under way, and in which
// order: that of the first pass on rank 0 becomes the order of buckets.
#pragma once

#include <troika/session/session.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace troika::detail {

class ReadyGradients {
 public:
  // Watches `count` parameters. With `kFixed` buckets stay as they are.
  enum class Order { kObserved, kFixed };
  ReadyGradients(std::size_t count, Order order);

  // Begins a new pass.
  void begin();
  // Notes that the parameter has got its gradient. Returns whether that is the first time in this
  // pass.
  bool add(std::size_t index);
  [[nodiscard]] bool contains(std::size_t index) const { return last_pass_[index] == pass_; }

  // Returns whether the order is still to be taken from a pass.
  [[nodiscard]] bool has_order() const { return order_.has_value(); }
  // Collective: takes the order of this pass on rank 0. Parameters that it has not seen come at the
  // end, the last one first. The order is taken once.
  [[nodiscard]] std::vector<std::size_t> take_order(const Session& session);

 private:
  std::uint64_t pass_ = 0;
  std::vector<std::uint64_t> last_pass_;  // in which each has got its gradient
  std::optional<std::vector<std::int32_t>> order_;
};

}  // namespace troika::detail
