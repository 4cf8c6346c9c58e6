#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/sync_batch_norm.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/data_parallel/gradient_averager.h>
#include <troika/parallel/data_parallel/replica_agreement.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_set>

namespace troika {

using detail::GradientAverager;
using detail::ValidationError;

namespace {

ValidationError validate_options(const DataParallelOptions& options) {
  const std::string stage = "zero_stage = " + std::to_string(options.zero_stage);
  if (options.zero_stage == 3) {
    return {stage + ": DataParallel has 0 to 2",
            "for 3 name the module's units in a troika::ModulePipeline"};
  }
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    return {stage + ": there are 0 to 3",
            "take 0, 1 or 2 in DataParallel, or 3 in a troika::ModulePipeline"};
  }
  if (options.zero_stage > 0 && options.hook) {
    return {stage + " with a hook",
            "a hook needs whole gradients: leave it out, or take zero_stage = 0"};
  }
  return {};
}

// All of it lies where the first parameter does.
ValidationError validate_device(const torch::nn::Module& module, const NamedTensor& each) {
  const NamedTensor first = detail::parameters_of(module).front();
  if (each.tensor.device() == first.tensor.device()) return {};
  return {quote(each.name, 200) + " is on " + name_of(each.tensor.device()) + ", and " +
              quote(first.name, 200) + " on " + name_of(first.tensor.device()),
          "a replica lies on one device: call module->to(device) before DataParallel is made"};
}

ValidationError validate_module(const torch::nn::Module* module) {
  if (module == nullptr) {
    return {"DataParallel is given no module", "make it first: a holder made of nullptr is empty"};
  }
  for (const NamedTensor& each : detail::parameters_of(*module)) {
    ValidationError problem = detail::validate_tensor("parameter", each);
    if (problem.text.empty()) problem = validate_device(*module, each);
    if (problem.text.empty() && each.tensor.requires_grad()) {
      problem = detail::validate_trained(each);
    }
    if (!problem.text.empty()) return problem;
  }
  for (const NamedTensor& each : detail::buffers_of(*module)) {
    ValidationError problem = detail::validate_tensor("buffer", each);
    if (problem.text.empty()) problem = validate_device(*module, each);
    if (!problem.text.empty()) return problem;
  }
  if (!detail::trained_of(*module).empty()) return {};
  return {"the module has no parameters to train",
          "register what is to be trained, with requires_grad"};
}

// Looks at the parameters when the backward pass of one output begins.
class WriteCheck final : public torch::autograd::FunctionPreHook {
 public:
  explicit WriteCheck(const std::shared_ptr<GradientAverager>& averager)
      : averager_(averager), versions_(averager->writes().versions()) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (const auto averager = averager_.lock()) averager->writes().throw_if_written(versions_);
    return grads;
  }

 private:
  std::weak_ptr<GradientAverager> averager_;
  std::vector<std::uint32_t> versions_;
};

}  // namespace

struct Replica::Impl {
  Impl(std::shared_ptr<torch::nn::Module> the_module, Session the_session,
       DataParallelOptions options);
  // An optimiser may keep the averager, and with it hooks on the parameters.
  ~Impl() { averager->remove_hooks(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  [[nodiscard]] std::vector<NamedTensor> values() const;
  // The norms of the module that are synchronised get their own group, where there can be one.
  void attach_norms(const std::vector<SyncBatchNormImpl*>& norms);
  // Throws naming a parameter that is trained now and was not when this was made.
  static void check_for_new_parameters(const torch::nn::Module& module,
                                       const std::unordered_set<const void*>& known);
  // Throws UsageError where the optimiser's step is collective.
  void refuse_join_without_step() const;

  Session session;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<GradientAverager> averager;
  int zero_stage = 0;
  bool synchronises_batch_norm = false;
  bool has_scaler = false;
};

Replica::Impl::Impl(std::shared_ptr<torch::nn::Module> the_module, Session the_session,
                    DataParallelOptions options)
    : session(std::move(the_session)), module(std::move(the_module)) {
  detail::throw_on_all_ranks(session, validate_options(options), "options");
  detail::throw_on_all_ranks(session, validate_module(module.get()), "module");
  detail::compare_modules(session, detail::parameters_of(*module), detail::buffers_of(*module));
  detail::broadcast_tensors(session, values(), 0);
  std::unordered_set<const void*> known;
  for (const NamedTensor& each : detail::trained_of(*module)) {
    known.insert(each.tensor.unsafeGetTensorImpl());
  }
  zero_stage = options.zero_stage;
  averager = std::make_shared<GradientAverager>(
      detail::parameters_of(*module), session, std::move(options),
      [module = module, known = std::move(known)] { check_for_new_parameters(*module, known); });
  std::vector<SyncBatchNormImpl*> norms;
  for (const auto& each : module->modules()) {
    if (auto* norm = dynamic_cast<SyncBatchNormImpl*>(each.get())) norms.push_back(norm);
  }
  attach_norms(norms);
}

void Replica::Impl::attach_norms(const std::vector<SyncBatchNormImpl*>& norms) {
  const auto count = static_cast<double>(norms.size());
  std::array<double, 2> most_and_least = {count, -count};
  session.reduce(most_and_least, ReduceOp::kMax, "synchronised norms");
  if (most_and_least[0] != -most_and_least[1]) {
    throw UsageError("modules differ between ranks: some have more SyncBatchNorm than others",
                     "make the same module on all ranks");
  }
  synchronises_batch_norm = !norms.empty();
  if (norms.empty()) return;
  const bool apart = !session.members().empty();  // a session on a group has that one alone
  const Group group = apart ? session.duplicate_world("batch norm") : session.world();
  for (SyncBatchNormImpl* norm : norms) norm->set_data_parallel(averager->weight(), group);
  averager->expect_concurrent(apart ? GradientAverager::ConcurrentCollectives::kSeparateGroup
                                    : GradientAverager::ConcurrentCollectives::kSameGroup);
}

std::vector<NamedTensor> Replica::Impl::values() const {
  std::vector<NamedTensor> all = detail::parameters_of(*module);
  for (NamedTensor& each : detail::buffers_of(*module)) all.push_back(std::move(each));
  return all;
}

void Replica::Impl::check_for_new_parameters(const torch::nn::Module& module,
                                             const std::unordered_set<const void*>& known) {
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() || known.contains(item.value().unsafeGetTensorImpl())) {
      continue;
    }
    throw UsageError(
        "parameter " + quote(item.key(), 200) +
            " was added to the module, or set to be trained, after DataParallel was "
            "made",
        "make DataParallel, and the optimiser, once the module is complete; to make it "
        "again, call unwrap() of this one first");
  }
}

void Replica::Impl::refuse_join_without_step() const {
  const std::string without = "join() without the optimiser's step, with ";
  if (has_scaler) {
    throw UsageError(without + "a GradScaler",
                     "write model.join([&] { scaler.step(optimizer); scaler.update(); }): ranks "
                     "skip steps, and change the scale, together");
  }
  if (zero_stage > 0) {
    throw UsageError(without + "zero_stage = " + std::to_string(zero_stage),
                     "write model.join([&] { optimizer.step(); }): every rank updates its shard");
  }
}

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Session session,
                 DataParallelOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(session), std::move(options))) {}

Replica::Replica(Replica&&) noexcept = default;
Replica& Replica::operator=(Replica&&) noexcept = default;
Replica::~Replica() = default;

Replica::NoSync::NoSync(Replica& replica)
    : replica_(replica), before_(replica.impl().averager->synchronises()) {
  replica_.impl().averager->synchronise(false);
}

Replica::NoSync::~NoSync() {
  if (replica_.impl_) replica_.impl_->averager->synchronise(before_);
}

void Replica::weigh(double count) {
  if (!(count >= 0 && count <= std::numeric_limits<double>::max())) {
    throw UsageError("weigh() takes a number of samples, not " + std::to_string(count));
  }
  *impl().averager->weight() = count;
}

void Replica::join(const std::function<void()>& step) {
  if (impl().synchronises_batch_norm) {
    throw UsageError("join() in a module with SyncBatchNorm: its forward passes need every rank",
                     "give every rank the same number of batches, as the sampler does with "
                     "Tail::kPad or Tail::kDrop");
  }
  if (!step) impl().refuse_join_without_step();
  double steps = 0;
  while (impl().averager->average_without_batch()) {
    ++steps;
    if (step) step();
  }
  // Who has been here longest may have parameters that are long out of date.
  std::vector<double> told(2 * static_cast<std::size_t>(session().size()));
  told[2 * static_cast<std::size_t>(session().rank())] = steps;
  told[2 * static_cast<std::size_t>(session().rank()) + 1] = step || steps == 0 ? 0 : 1;
  session().reduce(told, ReduceOp::kSum, "ranks that joined");
  int last = 0;
  bool outdated = false;
  for (int rank = 0; rank < session().size(); ++rank) {
    const auto at = 2 * static_cast<std::size_t>(rank);
    if (told[at] < told[2 * static_cast<std::size_t>(last)]) last = rank;
    outdated = outdated || told[at + 1] > 0;
  }
  if (outdated) broadcast_from(last);
}

void Replica::broadcast_from(int root) {
  detail::broadcast_tensors(session(), impl().values(), root);
  impl().averager->forget_writes();
}

void Replica::values_written() {
  impl().averager->forget_writes();
}

void Replica::unwrap() {
  impl_.reset();
}

void Replica::seed_by_rank(std::uint64_t seed) const {
  session().seed_by_rank(seed);
}

Replica::Impl& Replica::impl() const {
  if (impl_) return *impl_;
  throw UsageError("a DataParallel that has no module: it was unwrapped, or moved away",
                   "assign another one to it first");
}

const Session& Replica::session() const {
  return impl().session;
}

const std::shared_ptr<torch::nn::Module>& Replica::base_module() const {
  return impl().module;
}

int Replica::buckets() const {
  return impl().averager->buckets();
}

std::vector<at::Tensor> Replica::shards() const {
  return impl().averager->optimizer().shards();
}

std::vector<at::Tensor> Replica::shards_of(const std::vector<at::Tensor>& parameters) const {
  std::unordered_set<const void*> frozen;
  for (const at::Tensor& each : base_module()->parameters()) {
    if (!each.requires_grad()) frozen.insert(each.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : parameters) {
    if (frozen.contains(parameter.unsafeGetTensorImpl())) continue;
    for (at::Tensor& shard : impl().averager->optimizer().shards_of(parameter))
      all.push_back(std::move(shard));
  }
  return all;
}

std::vector<ParameterShard> Replica::named_shards() const {
  return impl().averager->optimizer().named_shards();
}

int Replica::zero_stage() const {
  return impl().zero_stage;
}

detail::UpdateAccess Replica::update_access() {
  const auto& averager = impl().averager;
  averager->optimizer().attach();
  return detail::UpdateAccess({averager, &averager->optimizer()});
}

void Replica::expect_collective_steps() {
  impl().has_scaler = true;
}

std::int64_t Replica::memory_bytes() const {
  return impl().averager->bytes();
}

void detail::UpdateAccess::begin_step() const {
  access_->begin_update();
}

void detail::UpdateAccess::end_step() const {
  access_->end_update();
}

void detail::UpdateAccess::skip_step() const {
  access_->skip_update();
}

void detail::UpdateAccess::zero_grad() const {
  access_->zero_grad();
}

double detail::UpdateAccess::clip_grad_norm(double max_norm) const {
  return access_->clip_grad_norm(max_norm);
}

std::string detail::UpdateAccess::describe_shards() const {
  return access_->describe_shards();
}

void detail::UpdateAccess::check_saved_shards(const std::string* saved) const {
  access_->check_saved_shards(saved);
}

void Replica::watch_tensor(const at::Tensor& output) {
  if (!output.defined()) return;
  if (const auto& grad_fn = output.grad_fn()) {
    grad_fn->add_pre_hook(std::make_unique<WriteCheck>(impl().averager));
  }
}

}  // namespace troika
