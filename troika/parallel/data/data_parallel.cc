#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/parallel/data/data_parallel.h>
#include <troika/parallel/data/gradient_averager.h>
#include <troika/parallel/data/replica_agreement.h>
#include <troika/parallel/data/sync_batch_norm.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>

namespace troika {

using detail::GradientAverager;
using detail::NamedTensor;

namespace {

// Every tensor once, under the first of its names.
std::vector<NamedTensor> each_once(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> known;
  for (const auto& item : named) {
    if (item.value().defined() && known.insert(item.value().unsafeGetTensorImpl()).second) {
      tensors.push_back({item.key(), item.value()});
    }
  }
  return tensors;
}

std::vector<NamedTensor> trained(std::vector<NamedTensor> parameters) {
  std::erase_if(parameters, [](const NamedTensor& each) { return !each.tensor.requires_grad(); });
  return parameters;
}

std::string first_complaint(const torch::nn::Module* module) {
  if (module == nullptr) return "DataParallel is given no module";
  const std::vector<NamedTensor> parameters = trained(each_once(module->named_parameters()));
  if (parameters.empty()) return "the module has no parameters to train";
  for (const NamedTensor& each : parameters) {
    if (std::string complaint = GradientAverager::complaint(each); !complaint.empty()) {
      return complaint;
    }
  }
  return {};
}

// Looks at the parameters when the backward pass of one output begins.
class WriteCheck final : public torch::autograd::FunctionPreHook {
 public:
  explicit WriteCheck(const std::shared_ptr<GradientAverager>& averager)
      : averager_(averager), versions_(averager->versions()) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (const auto averager = averager_.lock()) averager->throw_if_written(versions_);
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
  [[nodiscard]] std::vector<NamedTensor> values() const;
  // Throws naming a parameter that is trained now and was not when this was made.
  static void look_again(const torch::nn::Module& module,
                         const std::unordered_set<const void*>& known);

  Session session;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<GradientAverager> averager;
  bool synchronises_batch_norm = false;
};

Replica::Impl::Impl(std::shared_ptr<torch::nn::Module> the_module, Session the_session,
                    DataParallelOptions options)
    : session(std::move(the_session)), module(std::move(the_module)) {
  detail::complain_together(session, first_complaint(module.get()),
                            "DataParallel takes dense fp64, fp32, bf16 and fp16 parameters in host "
                            "memory, of one module at a time",
                            "module");
  detail::compare_modules(session, each_once(module->named_parameters()),
                          each_once(module->named_buffers()));
  detail::broadcast_tensors(session, values(), 0);
  std::vector<NamedTensor> parameters = trained(each_once(module->named_parameters()));
  std::unordered_set<const void*> known;
  for (const NamedTensor& each : parameters) known.insert(each.tensor.unsafeGetTensorImpl());
  averager = std::make_shared<GradientAverager>(
      std::move(parameters), session, std::move(options),
      [module = module, known = std::move(known)] { look_again(*module, known); });
  for (const auto& each : module->modules()) {
    auto* norm = dynamic_cast<SyncBatchNormImpl*>(each.get());
    if (norm == nullptr) continue;
    norm->weigh_by(averager->weight());
    synchronises_batch_norm = true;
  }
}

std::vector<NamedTensor> Replica::Impl::values() const {
  std::vector<NamedTensor> all = each_once(module->named_parameters());
  for (NamedTensor& each : each_once(module->named_buffers())) all.push_back(std::move(each));
  return all;
}

void Replica::Impl::look_again(const torch::nn::Module& module,
                               const std::unordered_set<const void*>& known) {
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() || known.contains(item.value().unsafeGetTensorImpl())) {
      continue;
    }
    throw UsageError("parameter " + quote(item.key(), 200) +
                         " was added to the module, or set to be trained, after DataParallel was "
                         "made",
                     "make DataParallel, and the optimiser, once the module is complete");
  }
}

Replica::Replica(std::shared_ptr<torch::nn::Module> module, Session session,
                 DataParallelOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(session), std::move(options))) {}

Replica::Replica(Replica&&) noexcept = default;
Replica& Replica::operator=(Replica&&) noexcept = default;
Replica::~Replica() = default;

Replica::NoSync::NoSync(Replica& replica)
    : replica_(replica), before_(replica.impl_->averager->synchronises()) {
  replica_.impl_->averager->synchronise(false);
}

Replica::NoSync::~NoSync() {
  replica_.impl_->averager->synchronise(before_);
}

void Replica::weigh(double count) {
  if (!(count >= 0 && count <= std::numeric_limits<double>::max())) {
    throw UsageError("weigh() takes a number of samples, not " + std::to_string(count));
  }
  *impl_->averager->weight() = count;
}

void Replica::join(const std::function<void()>& step) {
  if (impl_->synchronises_batch_norm) {
    throw UsageError("join() in a module with SyncBatchNorm: its forward passes need every rank",
                     "give every rank the same number of batches, as the sampler does with "
                     "Tail::kPad or Tail::kDrop");
  }
  double steps = 0;
  while (impl_->averager->average_without_batch()) {
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
  detail::broadcast_tensors(session(), impl_->values(), root);
  impl_->averager->forget_writes();
}

const Session& Replica::session() const {
  return impl_->session;
}

const std::shared_ptr<torch::nn::Module>& Replica::base_module() const {
  return impl_->module;
}

int Replica::buckets() const {
  return impl_->averager->buckets();
}

void Replica::watch_tensor(const at::Tensor& output) {
  if (!output.defined()) return;
  if (const auto& grad_fn = output.grad_fn()) {
    grad_fn->add_pre_hook(std::make_unique<WriteCheck>(impl_->averager));
  }
}

}  // namespace troika
