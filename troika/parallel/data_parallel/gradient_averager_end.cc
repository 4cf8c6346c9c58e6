// What comes when all gradients of a backward pass are there: the ranks' facts, and what follows
// from them. What an optimiser asks for is in gradient_averager_update.cc.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/parallel/data_parallel/gradient_averager.h>
#include <troika/parallel/data_parallel/value_agreement.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace troika::detail {
namespace {

// "parameters 'a', 'b' and 3 others"
std::string name_all(std::span<const GradientSlot> slots, std::span<const int> indices) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> names;
  for (const int index : indices.subspan(0, std::min(kShown, indices.size()))) {
    names.push_back(quote(slots[static_cast<std::size_t>(index)].name, 200));
  }
  std::string text = (indices.size() == 1 ? "parameter " : "parameters ") + join(names, ", ");
  if (indices.size() > kShown) {
    text += " and " + std::to_string(indices.size() - kShown) + " others";
  }
  return text;
}

// A rank is absent while this lives.
class Absence {
 public:
  explicit Absence(bool& present) : present_(present) { present_ = false; }
  ~Absence() { present_ = true; }
  Absence(const Absence&) = delete;
  Absence& operator=(const Absence&) = delete;

 private:
  bool& present_;
};

}  // namespace

void GradientAverager::start_side_operations() {
  if (const at::Tensor& facts = buckets_->separate_facts(); facts.defined()) {
    buckets_->write(own_facts());
    facts_work_ = group_.all_reduce(facts, ReduceOp::kAverage, session_.call("step facts"));
  }
  if (used_.defined()) {
    used_.fill_(present_ ? 1 : 0);
    for (const int index : unused_) used_.data_ptr<std::int32_t>()[index] = 0;
    used_work_ = group_.all_reduce(used_, ReduceOp::kSum, session_.call("used parameters"));
  }
}

StepFacts GradientAverager::wait_for_buckets() {
  std::vector<ModuleBucket>& buckets = buckets_->all();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    ModuleBucket& bucket = buckets[i];
    buckets_->release_buffer(bucket, slots_);
    if (options_.hook) {
      options_.hook->finish(
          {static_cast<int>(i), bucket.flat, &group_, session_.call(bucket.label)});
    }
  }
  facts_work_.wait();
  used_work_.wait();
  ++averages_done_;
  return buckets_->read();
}

// The weights are sums over ranks divided by their number, as the gradients are.
void GradientAverager::finalize(const StepFacts& facts) {
  *weight_ = 1;
  if (facts.present > 0 && facts.weight == 0) {
    throw UsageError("every rank said weigh(0): there is nothing to average",
                     "leave out a step for which no rank has a sample, on all ranks");
  }
  constexpr double kSame = 1e-6;  // above the rounding of fp32, below one rank in a million
  if (!normalises_weights_ && facts.weight > 0 && std::abs(facts.weight - 1) > kSame) {
    for (ModuleBucket& bucket : buckets_->all()) {
      (shards_ ? bucket.own : bucket.flat).mul_(1 / facts.weight);
    }
  }
  // Of one rank whose checksum is another by one, among n: (n - 1) / n^2.
  const double spread = facts.checksum_squared - facts.checksum * facts.checksum;
  const bool all_present = facts.present > 1 - 0.5 / group_.size();
  const bool apart = all_present && spread > 0.25 / group_.size();
  if (facts.alarm > 0 || apart) resolve_divergence();
  if (facts.present > 0) publish_gradients();
  if (order_) rebuild_buckets();
}

// Collective: compares the ranks, and throws or makes them equal.
void GradientAverager::resolve_divergence() {
  const bool refused = !unused_.empty() && options_.unused == DataParallelOptions::Unused::kRefuse;
  ValidationError own;
  if (refused) {
    own = {name_all(slots_, unused_) + " got no gradient in the backward pass",
           "leave them out of the module, freeze them with requires_grad_(false) before "
           "DataParallel is made, or allow it with options.unused = Unused::kAllow"};
  }
  throw_on_all_ranks(session_, own, "unused parameters");
  const CountedWrites counted{static_cast<std::int64_t>(sum_of_versions() - base_version_),
                              rebound_};
  if (agree_on_values(session_, parameters_, counted) == Agreement::kSynchronised) {
    digest_skipped_until_ = averages_done_ + ValueDigest::kPasses;
  }
  if (shards_) compare_writes();
  forget_writes();
}

// Gives the parameters whose gradients come from other ranks alone their view of the arena.
void GradientAverager::publish_gradients() {
  if (shards_) {
    const std::int32_t* used = used_.defined() ? used_.const_data_ptr<std::int32_t>() : nullptr;
    shards_->publish_gradients({used, used == nullptr ? 0 : slots_.size()});
    pending_ = true;
    return;
  }
  for (int index = 0; index < static_cast<int>(slots_.size()); ++index) {
    GradientSlot& slot = slots_[static_cast<std::size_t>(index)];
    if (slot.parameter.grad().defined() && present_) continue;
    if (used_.defined() && used_.data_ptr<std::int32_t>()[index] == 0) {
      if (!present_) slot.parameter.mutable_grad() = at::Tensor();
      continue;
    }
    slot.parameter.mutable_grad() = slot.view;
  }
}

// Buckets in the order in which gradients became ready in the first pass, on rank 0.
void GradientAverager::rebuild_buckets() {
  std::vector<int> seen(slots_.size(), 0);
  std::vector<int> order = *order_;
  order_.reset();
  for (const int index : order) seen[static_cast<std::size_t>(index)] = 1;
  for (int index = static_cast<int>(slots_.size()); index-- > 0;) {
    if (seen[static_cast<std::size_t>(index)] == 0) order.push_back(index);
  }
  const at::Tensor agreed =
      at::from_blob(order.data(), {static_cast<std::int64_t>(order.size())}, at::kInt);
  group_.broadcast(agreed, 0, session_.call("order of gradients")).wait();
  std::vector<std::vector<int>> now;
  for (const ModuleBucket& bucket : buckets_->all()) now.push_back(bucket.slots);
  if (GradientBuckets::plan(slots_, order, options_.buckets) == now) return;
  std::vector<at::Tensor> before;
  for (const GradientSlot& slot : slots_) before.push_back(slot.view);
  buckets_ = make_buckets(order);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    GradientSlot& slot = slots_[i];
    slot.view.copy_(before[i]);
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (gradient.is_same(before[i])) gradient = slot.view;
  }
}

bool GradientAverager::average_without_batch() {
  if (in_pass_) abort_pass();
  refuse_unused_gradients();
  ++pass_;
  const Absence absence(present_);
  unused_.clear();
  next_ = buckets_->all().size();
  check_parameter_memory();
  for (ModuleBucket& bucket : buckets_->all()) launch(bucket);
  start_side_operations();
  const StepFacts facts = wait_for_buckets();
  const bool any = facts.present > 0.5 / group_.size();
  if (any || order_) finalize(facts);
  return any;
}

}  // namespace troika::detail
