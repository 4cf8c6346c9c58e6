#include <ATen/ATen.h>
#include <troika/train/loss_sum.h>

#include <cmath>
#include <utility>

namespace troika {

LossSum::LossSum(Group group, double loss, std::int64_t valid, const Call& call)
    : group_(std::move(group)), shared_(at::zeros({2 + group_.size()}, at::kDouble)) {
  auto* values = shared_.mutable_data_ptr<double>();
  values[0] = std::isfinite(loss) ? loss : 0;
  values[1] = valid == kRefused ? 0 : static_cast<double>(valid);
  values[2 + group_.rank()] = valid == kRefused ? 2 : (std::isfinite(loss) ? 0 : 1);
  work_ = group_.all_reduce(shared_, ReduceOp::kSum, call);
}

LossSum::Result LossSum::wait() const {
  work_.wait();
  const auto* values = shared_.const_data_ptr<double>();
  Result result{values[0], static_cast<std::int64_t>(values[1]), {}, false};
  for (int i = 0; i < group_.size(); ++i) {
    result.refused = result.refused || values[2 + i] == 2;
    if (values[2 + i] == 1) {
      result.nonfinite_ranks.push_back(group_.ranks()[static_cast<std::size_t>(i)]);
    }
  }
  if (!result.nonfinite_ranks.empty()) result.loss = std::nan("");
  return result;
}

}  // namespace troika
