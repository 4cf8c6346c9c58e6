#include <troika/base/error.h>
#include <troika/parallel/data_parallel/gradient_averager.h>
#include <troika/session/consensus.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace troika::detail {
namespace {

// Facts, and weights that are numbers of samples, are exact in the dtype of all gradients.
bool is_exact(std::span<const GradientSlot> slots) {
  const at::ScalarType dtype = slots.front().dtype;
  const bool same =
      std::ranges::all_of(slots, [&](const auto& each) { return each.dtype == dtype; });
  return same && (dtype == at::kFloat || dtype == at::kDouble);
}

StepWeight::Normalization normalization_of(std::span<const GradientSlot> slots,
                                           const DataParallelOptions& options) {
  return options.hook || !is_exact(slots) ? StepWeight::Normalization::kBeforeReduction
                                          : StepWeight::Normalization::kAfterReduction;
}

UnusedParameters::Policy policy_of(const DataParallelOptions& options) {
  return options.unused == DataParallelOptions::Unused::kAllow ? UnusedParameters::Policy::kAllow
                                                               : UnusedParameters::Policy::kRefuse;
}

// What is used last is ready first: a guess until the first backward pass has been seen.
std::vector<std::size_t> reverse_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace

GradientAverager::GradientAverager(std::vector<NamedTensor> parameters, Session session,
                                   DataParallelOptions options,
                                   std::function<void()> check_for_new_parameters)
    : session_(std::move(session)),
      group_(session_.world()),
      options_(std::move(options)),
      check_for_new_parameters_(std::move(check_for_new_parameters)),
      slots_(make_slots(parameters)),
      weight_(session_, normalization_of(slots_, options_)),
      ready_(slots_.size(), options_.zero_stage == 0 ? ReadyGradients::Order::kObserved
                                                     : ReadyGradients::Order::kFixed),
      unused_(slots_, session_, policy_of(options_)),
      nonfinite_(slots_, options_.on_nonfinite, session_.rank()),
      buckets_(slots_, reverse_order(slots_.size()), group_, bucket_options()),
      reducer_(make_reducer()),
      shards_(options_.zero_stage == 0
                  ? nullptr
                  : std::make_unique<ParameterShards>(slots_, buckets_, *reducer_, session_)),
      writes_(slots_, shards_ ? ParameterShards::copy_values_into_bucket : nullptr),
      checker_(std::move(parameters), slots_, writes_, session_,
               options_.check_values ? ReplicaChecker::Values::kChecked
                                     : ReplicaChecker::Values::kUnchecked),
      optimizer_(slots_, shards_.get(), checker_, session_, options_.zero_stage),
      hooks_(slots_, *this) {}

// With ZeRO the facts are the same numbers as in padding, in the same dtype.
GradientBuckets::Options GradientAverager::bucket_options() const {
  using Facts = GradientBuckets::Options::Facts;
  const bool exact = weight_.normalization() == StepWeight::Normalization::kAfterReduction;
  const at::Device device = slots_.front().device;
  const bool in_padding = exact && options_.zero_stage == 0 && device.is_cpu();
  return {.sizes = options_.buckets,
          .stage = options_.zero_stage,
          .facts = in_padding ? Facts::kInPadding : Facts::kSeparate,
          .facts_dtype = exact ? slots_.front().dtype : at::kDouble,
          .device = device};
}

std::unique_ptr<BucketReducer> GradientAverager::make_reducer() {
  expected_.clear();
  for (const auto& members : buckets_.plan()) {
    expected_.push_back({static_cast<int>(members.size())});
  }
  BucketReducer::Front& front = *this;
  return std::make_unique<BucketReducer>(buckets_.gradients(), front,
                                         BucketReducer::Options{.shard = group_,
                                                                .op = ReduceOp::kAverage,
                                                                .hook = options_.hook,
                                                                .timeout = session_.timeout(),
                                                                .device = slots_.front().device});
}

void GradientAverager::remove_hooks() {
  hooks_.remove();
  optimizer_.detach_model();
}

void GradientAverager::expect_concurrent(ConcurrentCollectives collectives) {
  launches_at_end_ = collectives == ConcurrentCollectives::kSameGroup ||
                     weight_.normalization() == StepWeight::Normalization::kBeforeReduction;
  reducer_->borrow_without_waiting();
}

void GradientAverager::validate_pass() {
  optimizer_.refuse_unused_gradients();
  writes_.find_moves();
}

void GradientAverager::begin_pass() {
  averages_ = synchronises_;
  present_ = true;
  nonfinite_.begin();
  ready_.begin();
  reducer_->begin_step(expected_);
}

void GradientAverager::abort_pass() {
  reducer_->abort();
}

void GradientAverager::place_gradients(std::size_t bucket, const at::Tensor& gradients) {
  buckets_.set_views(bucket, gradients);
}

void GradientAverager::gradient_ready(std::size_t index) {
  GradientSlot& slot = slots_[index];
  const bool again = averages_ && !ready_.add(index);
  const bool started = reducer_->is_started(slot.bucket);
  if (!again || !started) {
    reducer_->borrow_memory(slot.bucket);
    move_gradient_to_view(slot);
  }
  if (!averages_) return;
  if (again) {
    if (!started) return;
    throw UsageError(title_of(slot) +
                         " got a second gradient in one backward pass, after the first "
                         "had been averaged",
                     "run such a backward pass inside no_sync(), and the last one outside");
  }
  reducer_->add_contribution(slot.bucket);
  if (!launches_at_end_) reducer_->start_complete();
}

void GradientAverager::complete_gradients(std::size_t bucket) {
  if (bucket == 0) {
    factor_ = weight_.factor_before_reduction(present_ ? *weight_.value() : 0);
  }
  const at::Tensor& gradients = reducer_->buckets()[bucket].gradients;
  if (factor_ == 0) {
    gradients.zero_();
  } else if (factor_ != 1) {
    gradients.mul_(factor_);
  }
  nonfinite_.check(bucket, gradients);
  const bool last = bucket + 1 == reducer_->buckets().size();
  if (last && !buckets_.separate_facts().defined()) buckets_.facts().write(own_facts());
}

StepFacts GradientAverager::own_facts() const {
  const double checksum = present_ ? checker_.checksum() : 0;  // not looked at otherwise
  return {.weight = present_ ? *weight_.value() : 0,
          .present = present_ ? 1.0 : 0.0,
          .checksum = checksum,
          .checksum_squared = checksum * checksum,
          .alarm = unused_.are_refused() || writes_.moved() || nonfinite_.stops() ? 1.0 : 0.0};
}

// What has had no gradient in this pass: earlier ones, or none.
void GradientAverager::complete_pass() {
  if (!averages_) return;
  unused_.clear();
  if (reducer_->all_started()) return;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    GradientSlot& slot = slots_[index];
    if (ready_.contains(index)) continue;
    reducer_->borrow_memory(slot.bucket);
    if (slot.parameter.grad().defined()) {
      move_gradient_to_view(slot);
    } else {
      slot.view.zero_();
      unused_.add(index);
    }
  }
  // Else all ranks throw the error about unused parameters.
  if (!unused_.are_refused()) check_for_new_parameters_();
  reducer_->start_rest();
}

void GradientAverager::end_pass() {
  if (!averages_) return;
  start_side_operations();
  finalize(wait_for_buckets());
  // Parameters are to be written to next. A guard around the whole loop would go on with copies of
  // the values before.
  at::autocast::clear_cache();
}

bool GradientAverager::average_without_batch() {
  hooks_.abort_open_pass();
  optimizer_.refuse_unused_gradients();
  present_ = false;
  nonfinite_.begin();
  unused_.clear();
  writes_.find_moves();
  reducer_->begin_step(expected_);
  reducer_->start_rest();
  start_side_operations();
  const StepFacts facts = wait_for_buckets();
  const bool any = any_present(facts, group_.size());
  if (any || ready_.has_order()) finalize(facts);
  return any;
}

void GradientAverager::start_side_operations() {
  if (const at::Tensor& facts = buckets_.separate_facts(); facts.defined()) {
    buckets_.facts().write(own_facts());
    facts_work_ = group_.all_reduce(facts, ReduceOp::kAverage, session_.call("step facts"));
  }
  unused_.start_count(present_);
}

StepFacts GradientAverager::wait_for_buckets() {
  reducer_->wait();
  facts_work_.wait();
  unused_.wait_for_count();
  checker_.count_average();
  return buckets_.facts().read();
}

void GradientAverager::finalize(const StepFacts& facts) {
  if (const double factor = weight_.factor_after_reduction(facts); factor != 1) {
    for (const ReducedBucket& bucket : reducer_->buckets()) bucket.sums().mul_(factor);
  }
  if (have_diverged(facts, group_.size())) resolve_divergence();
  if (facts.present > 0) publish_gradients();
  if (ready_.has_order()) rebuild_buckets();
}

// Collective: compares the ranks, and throws or makes them equal.
void GradientAverager::resolve_divergence() {
  throw_on_all_ranks(session_, unused_.validate(), "unused parameters");
  std::optional<Failure> nonfinite;
  if (nonfinite_.stops()) nonfinite = nonfinite_.failure();
  troika::throw_on_all_ranks(session_, nonfinite, "gradients that are not finite");
  checker_.resolve();
  if (shards_) checker_.compare_writes_before_update();
  checker_.reset();
}

// Gives the parameters whose gradients come from other ranks alone their view of the arena.
void GradientAverager::publish_gradients() {
  const std::span<const std::int32_t> users = unused_.users();
  if (shards_) {
    shards_->publish_gradients(users);
    optimizer_.gradients_published();
    return;
  }
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    GradientSlot& slot = slots_[index];
    if (slot.parameter.grad().defined() && present_) continue;
    if (!users.empty() && users[index] == 0) {
      if (!present_) slot.parameter.mutable_grad() = at::Tensor();
      continue;
    }
    slot.parameter.mutable_grad() = slot.view;
  }
}

// Buckets in the order in which gradients became ready in the first pass, on rank 0.
void GradientAverager::rebuild_buckets() {
  const std::vector<std::size_t> order = ready_.take_order(session_);
  if (GradientBuckets::plan(slots_, order, options_.buckets) == buckets_.plan()) return;
  std::vector<at::Tensor> before;
  for (const GradientSlot& slot : slots_) before.push_back(slot.view);
  buckets_ = GradientBuckets(slots_, order, group_, bucket_options());
  reducer_ = make_reducer();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    GradientSlot& slot = slots_[i];
    slot.view.copy_(before[i]);
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (gradient.is_same(before[i])) gradient = slot.view;
  }
}

}  // namespace troika::detail
