#include <troika/parallel/data_parallel/ready_gradients.h>

#include <ATen/ATen.h>

#include <utility>

namespace troika::detail {

ReadyGradients::ReadyGradients(std::size_t count, Order order) : last_pass_(count) {
  if (order == Order::kObserved) order_.emplace();
}

void ReadyGradients::begin() {
  ++pass_;
  if (order_) order_->clear();
}

bool ReadyGradients::add(std::size_t index) {
  if (contains(index)) return false;
  last_pass_[index] = pass_;
  if (order_) order_->push_back(static_cast<std::int32_t>(index));
  return true;
}

std::vector<std::size_t> ReadyGradients::take_order(const Session& session) {
  std::vector<std::int32_t> order = *std::exchange(order_, std::nullopt);
  std::vector<bool> seen(last_pass_.size(), false);
  for (const std::int32_t index : order) seen[static_cast<std::size_t>(index)] = true;
  for (std::size_t index = seen.size(); index-- > 0;) {
    if (!seen[index]) order.push_back(static_cast<std::int32_t>(index));
  }
  const at::Tensor agreed =
      at::from_blob(order.data(), {static_cast<std::int64_t>(order.size())}, at::kInt);
  session.world().broadcast(agreed, 0, session.call("order of gradients")).wait();
  return {order.begin(), order.end()};
}

}  // namespace troika::detail
