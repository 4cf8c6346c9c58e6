#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/step_sums.h>

#include <cmath>
#include <utility>

namespace troika {
namespace {

constexpr int kNonFinite = 1, kRefused = 2, kWantsCheckpoint = 4, kDataHashed = 8, kFlags = 16;
constexpr int kSums = 3;

double number_of(const StepPart& own, bool is_finite) {
  int number = own.refused ? kRefused : (is_finite ? 0 : kNonFinite);
  if (own.wants_checkpoint) number += kWantsCheckpoint;
  if (own.data_hashed) number += kDataHashed;
  return number + kFlags * own.stop_signal;
}

void check_flags(const std::vector<Group>& groups, const StepPart& own) {
  check(groups.size() == 1 || number_of(own, true) == 0,
        "a refusal, a wish or a signal that would be added up over several groups");
}

// Replaces a number on a device by a copy in the host's memory, which is queued.
void copy_to_host(at::Tensor& number) {
  if (!number.defined() || number.is_cpu() || number.is_meta()) return;
  const at::Tensor host = host_memory_for(number.device(), number);
  host.copy_(number, /*non_blocking=*/true);
  number = host;
}

}  // namespace

StepReduction::StepReduction(std::vector<Group> groups, StepPart own, std::string label,
                             Seconds timeout, at::Device device)
    : groups_(std::move(groups)),
      own_(std::move(own)),
      label_(std::move(label)),
      timeout_(timeout),
      shared_(at::zeros({kSums + groups_.front().size()}, at::kDouble)) {
  check_flags(groups_, own_);
  if (device.is_cpu()) {
    start();
  } else {
    copy_to_host(own_.loss.sum);
    copy_to_host(own_.loss.weight);
    loss_copied_ = DeviceEvent::record(device);
  }
}

void StepReduction::start() {
  const Group& first = groups_.front();
  loss_copied_.wait(Deadline::in(timeout_), "the loss of a step");
  auto* values = shared_.mutable_data_ptr<double>();
  const double loss = own_.loss.read_sum();
  values[0] = std::isfinite(loss) ? loss : 0;
  values[1] = own_.loss.read_weight();
  values[2] = static_cast<double>(own_.valid);
  values[kSums + first.rank()] = number_of(own_, std::isfinite(loss));
  work_ = first.all_reduce(shared_, ReduceOp::kSum, {label_, Deadline::in(timeout_)});
  started_ = true;
}

StepSums StepReduction::wait() {
  if (!started_) start();
  work_.wait();
  for (std::size_t i = 1; i < groups_.size(); ++i) {
    groups_[i].all_reduce(shared_, ReduceOp::kSum, {label_, Deadline::in(timeout_)}).wait();
  }
  return sums_of({shared_.const_data_ptr<double>(), static_cast<std::size_t>(shared_.numel())},
                 groups_.front());
}

DeviceSums queue_sums(const std::vector<Group>& groups, const StepPart& own, std::string_view label,
                      Seconds timeout, at::Device device) {
  check_flags(groups, own);
  const Group& first = groups.front();
  const at::Tensor known =
      host_memory_for(device, at::empty({kSums + first.size()}, at::kDouble)).zero_();
  auto* values = known.mutable_data_ptr<double>();
  if (own.refused) values[0] = std::nan("");
  values[2] = static_cast<double>(own.valid);
  values[kSums + first.rank()] = number_of(own, true);

  const at::Tensor shared = to_device(known, device);
  const DeviceSums sums{shared, shared[0], shared[1]};
  if (own.loss.sum.defined()) {
    sums.loss.add_(own.loss.sum);
    shared[kSums + first.rank()].add_(own.loss.sum.isfinite().logical_not(), kNonFinite);
  }
  if (own.loss.weight.defined()) sums.weight.add_(own.loss.weight);
  for (const Group& group : groups) {
    group.all_reduce(shared, ReduceOp::kSum, {label, Deadline::in(timeout)}).wait();
  }
  return sums;
}

StepSums sums_of(std::span<const double> values, const Group& first) {
  StepSums sums;
  sums.data_hashed = true;
  sums.loss = values[0];
  sums.weight = values[1];
  sums.valid = static_cast<std::int64_t>(values[2]);
  for (int i = 0; i < first.size(); ++i) {
    const int number = static_cast<int>(values[kSums + static_cast<std::size_t>(i)]);
    if (sums.stop_signal == 0) sums.stop_signal = number / kFlags;
    sums.refused = sums.refused || (number & kRefused) != 0;
    sums.wants_checkpoint = sums.wants_checkpoint || (number & kWantsCheckpoint) != 0;
    sums.data_hashed = sums.data_hashed && (number & kDataHashed) != 0;
    if ((number & kNonFinite) != 0) {
      sums.nonfinite_ranks.push_back(first.ranks()[static_cast<std::size_t>(i)]);
    }
  }
  if (!sums.nonfinite_ranks.empty()) sums.loss = std::nan("");
  return sums;
}

}  // namespace troika
