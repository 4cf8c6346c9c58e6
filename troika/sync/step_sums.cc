#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/step_sums.h>

#include <cmath>
#include <utility>

namespace troika {
namespace {

constexpr int kStateNonFinite = 1, kStateRefused = 2, kStates = 4;
constexpr int kSums = 3;

}  // namespace

StepReduction::StepReduction(std::vector<Group> groups, const StepPart& own, std::string label,
                             Seconds timeout)
    : groups_(std::move(groups)),
      label_(std::move(label)),
      timeout_(timeout),
      shared_(at::zeros({kSums + groups_.front().size()}, at::kDouble)) {
  const Group& first = groups_.front();
  check(groups_.size() == 1 || (!own.refused && own.stop_signal == 0),
        "a refusal or a signal that would be added up over several groups");
  auto* values = shared_.mutable_data_ptr<double>();
  const double loss = own.loss.read_sum();
  values[0] = std::isfinite(loss) ? loss : 0;
  values[1] = own.loss.read_weight();
  values[2] = static_cast<double>(own.valid);
  const int state = own.refused ? kStateRefused : (std::isfinite(loss) ? 0 : kStateNonFinite);
  values[kSums + first.rank()] = state + kStates * own.stop_signal;
  work_ = first.all_reduce(shared_, ReduceOp::kSum, {label_, Deadline::in(timeout_)});
}

StepSums StepReduction::wait() const {
  work_.wait();
  for (std::size_t i = 1; i < groups_.size(); ++i) {
    groups_[i].all_reduce(shared_, ReduceOp::kSum, {label_, Deadline::in(timeout_)}).wait();
  }
  const Group& first = groups_.front();
  const auto* values = shared_.const_data_ptr<double>();
  StepSums sums;
  sums.loss = values[0];
  sums.weight = values[1];
  sums.valid = static_cast<std::int64_t>(values[2]);
  for (int i = 0; i < first.size(); ++i) {
    const int number = static_cast<int>(values[kSums + i]);
    if (sums.stop_signal == 0) sums.stop_signal = number / kStates;
    sums.refused = sums.refused || number % kStates == kStateRefused;
    if (number % kStates == kStateNonFinite) {
      sums.nonfinite_ranks.push_back(first.ranks()[static_cast<std::size_t>(i)]);
    }
  }
  if (!sums.nonfinite_ranks.empty()) sums.loss = std::nan("");
  return sums;
}

}  // namespace troika
