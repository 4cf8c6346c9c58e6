#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/all_reduce_sync.h>

#include <utility>

namespace troika {

AllReduceSync::AllReduceSync(Arena& arena, AllReduceOptions options)
    : options_(std::move(options)), axis_(arena, options_.partial, options_.timeout) {}

void AllReduceSync::begin_step(int microbatches, Seconds timeout) {
  options_.timeout = timeout;
  axis_.begin_step(microbatches, timeout);
}

StepReduction AllReduceSync::reduction(const StepPart& own, std::string_view label) const {
  return {options_.all, own, std::string(label), options_.patience * options_.timeout};
}

void AllReduceSync::reduce(const StepPart& own) {
  sums_.emplace(reduction(own, "loss"));
}

StepOutcome AllReduceSync::finish() {
  axis_.finish();
  check(sums_.has_value(), "a step that ends without a loss");
  StepOutcome outcome{Updater::kLocal, sums_->wait()};
  sums_.reset();
  return outcome;
}

void AllReduceSync::end_step(bool applied) {
  if (applied) axis_.after_update();
}

std::int64_t AllReduceSync::smallest(std::int64_t own, std::string_view label) const {
  const at::Tensor shared = at::full({1}, own, at::kLong);
  for (const Group& group : options_.all) {
    group.all_reduce(shared, ReduceOp::kMin, {label, Deadline::in(options_.timeout)}).wait();
  }
  return shared.item<std::int64_t>();
}

StepSums AllReduceSync::sum(const StepPart& own, std::string_view label) const {
  return reduction(own, label).wait();
}

}  // namespace troika
