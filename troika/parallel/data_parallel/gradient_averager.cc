#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/parallel/data_parallel/gradient_averager.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

namespace troika::detail {

namespace autograd = torch::autograd;

// Called by autograd when a gradient has been added to the parameter's.
class GradientAverager::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(GradientAverager& averager, int index) : averager_(averager), index_(index) {}
  void operator()(const autograd::Variable&) override { averager_.ready(index_); }

 private:
  GradientAverager& averager_;
  int index_;
};

namespace {

// Whether facts can be kept in the dtype of gradients.
bool is_exact(std::span<const GradientSlot> slots) {
  const at::ScalarType dtype = slots.front().dtype;
  const bool same =
      std::ranges::all_of(slots, [&](const auto& each) { return each.dtype == dtype; });
  return same && (dtype == at::kFloat || dtype == at::kDouble);
}

std::vector<std::int64_t> strides_of_gradient(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions(at::kMeta)).strides().vec();
}

// Of the same elements in the same order of memory.
bool is_copy_of_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && a.is_cpu() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

ValidationError GradientAverager::validate_parameter(const NamedTensor& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const std::string name = "parameter " + quote(parameter.name, 200);
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kDouble && dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    return {name + " is of dtype " + c10::toString(dtype) + ", whose gradients cannot be averaged",
            "DataParallel averages gradients in fp64, fp32, bf16 and fp16"};
  }
  if (autograd::impl::post_acc_grad_hooks(tensor)) {
    return {
        name + " is in another DataParallel already",
        "keep one DataParallel of a module, or call unwrap() of it before the next one is made"};
  }
  return {};
}

GradientAverager::GradientAverager(std::vector<NamedTensor> parameters, Session session,
                                   DataParallelOptions options,
                                   std::function<void()> check_for_new_parameters)
    : parameters_(std::move(parameters)),
      session_(std::move(session)),
      group_(session_.world()),
      options_(std::move(options)),
      check_for_new_parameters_(std::move(check_for_new_parameters)) {
  for (const NamedTensor& each : parameters_) {
    if (!each.tensor.requires_grad()) continue;
    GradientSlot& slot = slots_.emplace_back();
    slot.name = each.name;
    slot.parameter = each.tensor;
    slot.dtype = slot.parameter.scalar_type();
    slot.sizes = slot.parameter.sizes().vec();
    slot.strides = strides_of_gradient(slot.parameter);
    slot.data = slot.parameter.const_data_ptr();
  }
  if (options_.check_values && group_.size() > 1) digest_.emplace(parameters_);
  // What is used last is ready first: a guess until the first backward pass has been seen.
  std::vector<int> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  normalises_weights_ = options_.hook != nullptr || !is_exact(slots_);
  buckets_ = make_buckets(order);
  if (options_.zero_stage > 0) {
    shards_ = std::make_unique<ParameterShards>(slots_, buckets_->all(), session_);
    order_.reset();  // shards stay what they are
  }
  if (options_.unused == DataParallelOptions::Unused::kAllow) {
    used_ = group_.allocate(slots_.size() * sizeof(std::int32_t)).view(at::kInt);
  }
  for (int index = 0; index < static_cast<int>(slots_.size()); ++index) {
    autograd::impl::set_post_acc_grad_hooks(slots_[static_cast<std::size_t>(index)].parameter,
                                            std::make_unique<Hook>(*this, index));
  }
  forget_writes();
}

// With ZeRO the facts are the same numbers as in padding, in the same dtype.
std::unique_ptr<GradientBuckets> GradientAverager::make_buckets(std::span<const int> order) {
  const bool apart = normalises_weights_ || options_.zero_stage > 0;
  return std::make_unique<GradientBuckets>(
      slots_, order, options_.buckets,
      apart ? GradientBuckets::Facts::kSeparate : GradientBuckets::Facts::kInPadding, group_,
      options_.zero_stage, normalises_weights_ ? at::kDouble : slots_.front().dtype);
}

GradientAverager::~GradientAverager() {
  remove_hooks();
}

void GradientAverager::remove_hooks() {
  if (!hooked_) return;
  hooked_ = false;
  for (const GradientSlot& slot : slots_) {
    autograd::impl::set_post_acc_grad_hooks(slot.parameter, nullptr);
  }
}

void GradientAverager::expect_concurrent(ConcurrentCollectives collectives) {
  launches_at_end_ = collectives == ConcurrentCollectives::kSameGroup || normalises_weights_;
  buckets_->acquire_without_waiting();
}

void GradientAverager::ready(int index) {
  const int task = autograd::get_current_graph_task_id();
  if (!in_pass_ || task != task_) begin_pass(task);
  GradientSlot& slot = slots_[static_cast<std::size_t>(index)];
  ModuleBucket& bucket = buckets_->all()[static_cast<std::size_t>(slot.bucket)];
  const bool again = averages_ && slot.pass == pass_;
  if (!again || !bucket.started) {
    buckets_->acquire_buffer(bucket, slots_);
    copy_into_bucket(slot);
  }
  if (!averages_) return;
  if (again) {
    if (!bucket.started) return;
    throw UsageError(title_of(slot) +
                         " got a second gradient in one backward pass, after the first "
                         "had been averaged",
                     "run such a backward pass inside no_sync(), and the last one outside");
  }
  slot.pass = pass_;
  if (order_) order_->push_back(index);
  if (--bucket.missing == 0) launch_ready_buckets();
}

void GradientAverager::begin_pass(int task) {
  if (in_pass_) abort_pass();
  refuse_unused_gradients();
  check_parameter_memory();
  const auto* nodes = autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr && nodes->size() != graph_size_) {
    check_for_new_parameters_();
    graph_size_ = nodes->size();
  }
  autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
  in_pass_ = true;
  task_ = task;
  ++pass_;
  averages_ = synchronises_;
  if (order_) order_->clear();
  for (ModuleBucket& bucket : buckets_->all()) {
    bucket.missing = static_cast<int>(bucket.slots.size());
    bucket.started = false;
  }
  next_ = 0;
}

// The pass before has ended in an exception: what it has started must end before it is used again.
void GradientAverager::abort_pass() {
  in_pass_ = false;
  for (ModuleBucket& bucket : buckets_->all()) {
    if (bucket.started) buckets_->release_buffer(bucket, slots_);
  }
}

// torch::load and to() give a parameter other memory.
void GradientAverager::check_parameter_memory() {
  for (GradientSlot& slot : slots_) {
    const at::Tensor& parameter = slot.parameter;
    if (parameter.const_data_ptr() == slot.data) [[likely]]
      continue;
    if (parameter.scalar_type() != slot.dtype || !parameter.is_cpu() ||
        parameter.sizes() != at::IntArrayRef(slot.sizes)) {
      throw UsageError(title_of(slot) +
                           " has changed its dtype, device or shape since DataParallel "
                           "was made",
                       "call to() before DataParallel, and the optimiser, are made");
    }
    if (shards_) ParameterShards::copy_values_into_bucket(slot);
    slot.data = parameter.const_data_ptr();
    ++slot.moves;
    rebound_ = true;
  }
}

// A gradient that autograd has put elsewhere (the first after zero_grad()) moves into the arena.
void GradientAverager::copy_into_bucket(GradientSlot& slot) const {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (gradient.is_same(slot.view)) return;
  if (gradient.requires_grad()) {
    throw UsageError("the gradient of " + title_of(slot) + " has a graph of its own",
                     "use torch::autograd::grad() for gradients that are differentiated again");
  }
  if (is_copy_of_bytes(gradient, slot.view)) {
    std::memcpy(slot.view.data_ptr(), gradient.const_data_ptr(), slot.view.nbytes());
  } else if (gradient.layout() == at::kStrided && gradient.sizes() == slot.view.sizes()) {
    const at::NoGradGuard no_grad;
    slot.view.copy_(gradient);
  } else {
    throw UsageError("the gradient of " + title_of(slot) + " is not a dense tensor of its shape",
                     "make the embedding with sparse = false");
  }
  gradient = slot.view;
}

void GradientAverager::launch_ready_buckets() {
  if (launches_at_end_) return;
  std::vector<ModuleBucket>& buckets = buckets_->all();
  while (next_ < buckets.size() && buckets[next_].missing == 0) launch(buckets[next_++]);
}

// The weight; where gradients may be of 16 bits, too few for numbers of samples, over their mean.
void GradientAverager::weigh_gradients() {
  factor_ = present_ ? *weight_ : 0;
  if (!normalises_weights_) return;
  std::array<double, 1> sum = {factor_};
  session_.reduce(sum, ReduceOp::kSum, "weight of the step");
  if (factor_ == 0) return;
  factor_ *= group_.size() / sum[0];
  if (std::abs(factor_ - 1) < 1e-12) factor_ = 1;
}

void GradientAverager::launch(ModuleBucket& bucket) {
  const int index = static_cast<int>(&bucket - buckets_->all().data());
  if (index == 0) weigh_gradients();
  buckets_->acquire_buffer(bucket, slots_);
  if (factor_ == 0) {
    bucket.flat.zero_();
  } else if (factor_ != 1) {
    bucket.flat.mul_(factor_);
  }
  const bool last = static_cast<std::size_t>(index) + 1 == buckets_->all().size();
  if (last && !buckets_->separate_facts().defined()) buckets_->write(own_facts());
  bucket.started = true;
  const Call call = session_.call(bucket.label);
  if (options_.hook) {
    bucket.work = options_.hook->start({index, bucket.flat, &group_, call});
  } else if (shards_) {
    bucket.work =
        group_.reduce_scatter(bucket.own, bucket.flat, ReduceOp::kAverage, call, bucket.counts);
  } else {
    bucket.work = group_.all_reduce(bucket.flat, ReduceOp::kAverage, call);
  }
}

StepFacts GradientAverager::own_facts() const {
  // Writes tell at once, and cost nothing to count; values tell in time, also of writes that are
  // not counted.
  const std::uint64_t writes = sum_of_versions() - base_version_;
  const bool looks = digest_ && present_ && averages_done_ >= digest_skipped_until_;
  const std::uint64_t digest = looks ? digest_->of_segment(averages_done_) : 0;
  // Few bits, so that sums over many ranks are exact; others in each step, so that two sums which
  // share them do so once.
  const auto checksum =
      static_cast<double>(mix_bits(writes + (averages_done_ << 32) + mix_bits(digest)) & 15);
  const bool refused = !unused_.empty() && options_.unused == DataParallelOptions::Unused::kRefuse;
  return {.weight = present_ ? *weight_ : 0,
          .present = present_ ? 1.0 : 0.0,
          .checksum = checksum,
          .checksum_squared = checksum * checksum,
          .alarm = refused || rebound_ ? 1.0 : 0.0};
}

std::uint64_t GradientAverager::sum_of_versions() const {
  std::uint64_t sum = 0;
  for (const GradientSlot& slot : slots_) sum += slot.parameter._version();
  return sum;
}

void GradientAverager::end_pass() {
  if (averages_) launch_remaining_buckets();
  in_pass_ = false;
  if (!averages_) return;
  start_side_operations();
  finalize(wait_for_buckets());
}

// What has had no gradient in this pass: earlier ones, or none.
void GradientAverager::launch_remaining_buckets() {
  unused_.clear();
  std::vector<ModuleBucket>& buckets = buckets_->all();
  if (next_ == buckets.size()) return;
  for (int index = 0; index < static_cast<int>(slots_.size()); ++index) {
    GradientSlot& slot = slots_[static_cast<std::size_t>(index)];
    if (slot.pass == pass_) continue;
    buckets_->acquire_buffer(buckets[static_cast<std::size_t>(slot.bucket)], slots_);
    if (slot.parameter.grad().defined()) {
      copy_into_bucket(slot);
    } else {
      slot.view.zero_();
      unused_.push_back(index);
    }
  }
  // Else all ranks throw the error about unused parameters.
  if (unused_.empty() || options_.unused == DataParallelOptions::Unused::kAllow)
    check_for_new_parameters_();
  while (next_ < buckets.size()) launch(buckets[next_++]);
}

std::vector<std::uint32_t> GradientAverager::versions() const {
  std::vector<std::uint32_t> versions;
  versions.reserve(slots_.size());
  for (const GradientSlot& slot : slots_) {
    versions.push_back(static_cast<std::uint32_t>(slot.parameter._version()));
  }
  return versions;
}

void GradientAverager::throw_if_written(std::span<const std::uint32_t> versions) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (static_cast<std::uint32_t>(slots_[i].parameter._version()) == versions[i]) continue;
    throw UsageError(title_of(slots_[i]) + " was written to between forward and backward",
                     "write to parameters after backward(), or run forward() again");
  }
}

void GradientAverager::forget_writes() {
  if (shards_) check_parameter_memory();
  base_version_ = sum_of_versions();
  base_versions_ = versions();
  writes_before_update_.clear();
  rebound_ = false;
  for (GradientSlot& slot : slots_) {
    slot.data = slot.parameter.const_data_ptr();
    slot.moves = 0;
  }
}

}  // namespace troika::detail
