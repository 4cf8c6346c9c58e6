#include <ATen/ATen.h>
#include <troika/train/loss_sum.h>

#include <cmath>
#include <utility>

namespace troika {
namespace {

constexpr int kStateNonFinite = 1, kStateRefused = 2, kStates = 4;

}  // namespace

LossSum::LossSum(Group group, double loss, std::int64_t valid, const Call& call, int stop_signal)
    : group_(std::move(group)), shared_(at::zeros({2 + group_.size()}, at::kDouble)) {
  auto* values = shared_.mutable_data_ptr<double>();
  values[0] = std::isfinite(loss) ? loss : 0;
  values[1] = valid == kRefused ? 0 : static_cast<double>(valid);
  const int state = valid == kRefused ? kStateRefused : (std::isfinite(loss) ? 0 : kStateNonFinite);
  values[2 + group_.rank()] = state + kStates * stop_signal;
  work_ = group_.all_reduce(shared_, ReduceOp::kSum, call);
}

LossSum::Result LossSum::wait() const {
  work_.wait();
  const auto* values = shared_.const_data_ptr<double>();
  Result result;
  result.loss = values[0];
  result.valid = static_cast<std::int64_t>(values[1]);
  for (int i = 0; i < group_.size(); ++i) {
    const int number = static_cast<int>(values[2 + i]);
    if (result.stop_signal == 0) result.stop_signal = number / kStates;
    result.refused = result.refused || number % kStates == kStateRefused;
    if (number % kStates == kStateNonFinite) {
      result.nonfinite_ranks.push_back(group_.ranks()[static_cast<std::size_t>(i)]);
    }
  }
  if (!result.nonfinite_ranks.empty()) result.loss = std::nan("");
  return result;
}

}  // namespace troika
