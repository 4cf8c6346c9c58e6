#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/device/device.h>
#include <troika/nn/module_tensors.h>
#include <troika/parallel/data_parallel/grad_scaler.h>
#include <troika/parallel/data_parallel/unscale_gradients.h>
#include <troika/session/consensus.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>

namespace troika {
namespace {

constexpr const char* kScaleKey = "scale";
constexpr const char* kGoodStepsKey = "good_steps";
constexpr const char* kKeepFloats =
    "keep parameters in fp32, and run the forward pass under troika::Autocast(at::kHalf)";

// What a rank tells the others before a step. The maxima over all ranks tell whether any rank says
// so, and, of numbers together with their negatives, whether all ranks say the same.
enum Fact : std::size_t {
  kFound,
  kHasGradients,
  kHasScaled,
  kScale,
  kNegativeScale,
  kGoodSteps,
  kNegativeGoodSteps,
  kFacts,
};

// Calls `act` with each parameter of an optimiser, and its name in messages.
template <class Act>
void each_parameter(const torch::optim::Optimizer& optimizer, const Act& act) {
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& parameters = groups[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) act(parameters[i], group, i);
  }
}

void check_gradient(const at::Tensor& gradient, std::size_t group, std::size_t index) {
  const bool sparse = gradient.layout() != at::kStrided;
  if (!sparse && gradient.scalar_type() != at::kHalf) return;
  throw UsageError("parameter " + std::to_string(index) + " of group " + std::to_string(group) +
                       " of the optimiser has a " + (sparse ? "sparse" : "fp16") +
                       " gradient, which cannot be unscaled",
                   sparse ? "make the layer with sparse = false" : kKeepFloats);
}

std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  each_parameter(optimizer, [&](const at::Tensor& parameter, std::size_t group, std::size_t i) {
    if (!parameter.grad().defined()) return;
    check_gradient(parameter.grad(), group, i);
    gradients.push_back(parameter.grad());
  });
  return gradients;
}

bool has_gradients(const torch::optim::Optimizer& optimizer) {
  bool found = false;
  each_parameter(optimizer, [&](const at::Tensor& parameter, auto...) {
    found = found || parameter.grad().defined();
  });
  return found;
}

void check_parameters(const torch::nn::Module& module) {
  for (const NamedTensor& each : detail::trained_of(module)) {
    if (each.tensor.scalar_type() != at::kHalf) continue;
    throw UsageError("parameter " + quote(each.name, 200) +
                         " is fp16: its gradients and updates would leave the range of fp16",
                     kKeepFloats);
  }
}

}  // namespace

GradScaler::GradScaler(Session session, const GradScalerOptions& options)
    : session_(std::move(session)), rule_(options) {}

GradScaler::GradScaler(Replica& model, const GradScalerOptions& options)
    : GradScaler(model.session(), options) {
  if (!rule_.enabled()) return;
  check_parameters(*model.base_module());
  model.expect_collective_steps();
}

GradScaler::Entry* GradScaler::find(const torch::optim::Optimizer& optimizer) {
  const auto found = std::ranges::find(entries_, &optimizer, &Entry::optimizer);
  return found == entries_.end() ? nullptr : &*found;
}

void GradScaler::forget(const torch::optim::Optimizer& optimizer) {
  std::erase_if(entries_, [&](const Entry& each) { return each.optimizer == &optimizer; });
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!rule_.enabled()) return loss;
  if (std::ranges::any_of(entries_, [](const Entry& each) { return !each.resolved; })) {
    throw UsageError(
        "scale() between unscale_() and step(): gradients of this loss would be added to unscaled "
        "ones",
        "scale all losses of a step, and run their backward passes, before unscale_()");
  }
  scaled_ = true;
  // A tensor rather than a number, for a 16-bit loss to become fp32.
  return loss * at::full({}, rule_.scale(), at::TensorOptions(at::kFloat).device(loss.device()));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!rule_.enabled()) return;
  if (const Entry* entry = find(optimizer)) {
    throw UsageError(entry->resolved ? "unscale_() after step() of the same optimiser"
                                     : "unscale_() twice for one optimiser in a step",
                     "call it once, between backward() and step(); update() ends a step");
  }
  unscale(optimizer);
}

GradScaler::Entry& GradScaler::unscale(const torch::optim::Optimizer& optimizer) {
  const std::vector<at::Tensor> gradients = gradients_of(optimizer);
  return entries_.emplace_back(Entry{.optimizer = &optimizer,
                                     .found = detail::unscale_gradients(gradients, rule_.scale()),
                                     .resolved = false,
                                     .overflowed = false});
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!rule_.enabled()) {
    optimizer.step();
    return true;
  }
  Entry* entry = find(optimizer);
  if (entry != nullptr && entry->resolved) {
    throw UsageError("step() twice for one optimiser since the last update()",
                     "call update() once after the steps of all optimisers");
  }
  if (entry == nullptr) entry = &unscale(optimizer);
  try {
    resolve(*entry, has_gradients(optimizer) ? Gradients::kHere : Gradients::kMissing);
  } catch (...) {
    forget(optimizer);
    throw;
  }
  if (!entry->overflowed) {
    optimizer.step();
  } else if (auto* skipper = dynamic_cast<detail::StepSkipper*>(&optimizer)) {
    skipper->skip_step();
  }
  at::autocast::clear_cache();
  return !entry->overflowed;
}

// The only place where the host waits for the device.
void GradScaler::resolve(Entry& entry, Gradients gradients) {
  const DynamicScale::State& own = rule_.state();
  const auto good_steps = static_cast<double>(own.good_steps);
  std::array<double, kFacts> all = {};
  all[kFound] = to_host(entry.found).item<float>();
  all[kHasGradients] = gradients == Gradients::kHere ? 1 : 0;
  all[kHasScaled] = scaled_ ? 1 : 0;
  all[kScale] = own.scale;
  all[kNegativeScale] = -own.scale;
  all[kGoodSteps] = good_steps;
  all[kNegativeGoodSteps] = -good_steps;
  session_.reduce(all, ReduceOp::kMax, "gradients that are not finite");
  if (all[kScale] != -all[kNegativeScale] || all[kGoodSteps] != -all[kNegativeGoodSteps]) {
    throw_because_scales_differ();
  }
  if (all[kHasScaled] == 0) {
    throw UsageError("step() without a loss that was scaled since the last update()",
                     "write scaler.scale(loss).backward() before it, and call update() once after "
                     "the steps of all optimisers");
  }
  if (all[kHasGradients] == 0) {
    throw UsageError(
        "step() of an optimiser whose parameters have no gradients",
        "call backward() before it, and zero_grad() only after it; give it the parameters "
        "of the module that is trained");
  }
  entry.resolved = true;
  entry.overflowed = all[kFound] != 0;
}

void GradScaler::throw_because_scales_differ() const {
  std::ostringstream own;
  own << "scale " << state().scale << " after " << state().good_steps << " good steps";
  const auto difference = find_difference(session_, own.str(), "gradient scalers");
  check(difference.has_value(), "gradient scalers differ");
  throw UsageError("gradient scalers differ between ranks: " + difference->of_rank_zero +
                       " on rank 0, " + difference->theirs.text + " on " +
                       ranks_in_words(difference->theirs.ranks),
                   "make GradScaler with the same options on all ranks, and load the same state");
}

void GradScaler::update() {
  if (!rule_.enabled()) return;
  if (entries_.empty()) {
    throw UsageError("update() without a step()",
                     "call it once after the steps of all optimisers; not after passes that only "
                     "accumulate");
  }
  for (Entry& each : entries_) {
    if (!each.resolved) resolve(each, Gradients::kHere);
  }
  const bool overflowed = std::ranges::any_of(entries_, &Entry::overflowed);
  entries_.clear();
  scaled_ = false;
  overflowed ? rule_.back_off() : rule_.count_finite_step();
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler) {
  archive.write(kScaleKey, c10::IValue(scaler.state().scale));
  archive.write(kGoodStepsKey, c10::IValue(scaler.state().good_steps));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler) {
  c10::IValue scale, good_steps;
  if (!archive.try_read(kScaleKey, scale) || !scale.isDouble() ||
      !archive.try_read(kGoodStepsKey, good_steps) || !good_steps.isInt()) {
    throw DataError("a gradient scaler cannot be loaded from a file without its state",
                    "load what torch::save(scaler, path) has written");
  }
  scaler.load({.scale = scale.toDouble(), .good_steps = good_steps.toInt()});
  return archive;
}

}  // namespace troika
