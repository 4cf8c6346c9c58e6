// Runs the units of a plug-in's model once on small inputs, so that wrong shapes are refused before
// a job starts.
#include <torch/torch.h>
#include <troika/base/text.h>
#include <troika/models/row/expression_row.h>
#include <troika/models/row/row_model.h>
#include <troika/models/row/thrown.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/random_draws.h>
#include <troika/param/shape_text.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace troika {
namespace {

// As many as a batch-norm needs.
constexpr std::int64_t kSamplesOfTrial = 2;

at::Tensor draw_for_trial(const TensorSpec& spec) {
  std::vector<std::int64_t> shape = spec.shape;
  shape.insert(shape.begin(), kSamplesOfTrial);
  if (spec.dtype != at::kLong && spec.range == 0) return at::randn(shape).to(spec.dtype);
  return at::randint(std::max<std::int64_t>(1, spec.range), shape, at::kLong).to(spec.dtype);
}

Microbatch samples_for_trial(const SampleSpec& sample) {
  Microbatch batch;
  for (const TensorSpec& each : sample.tensors) {
    if (!each.optional) batch.tensors.add(each.name, draw_for_trial(each));
  }
  batch.sample_ids = at::arange(kSamplesOfTrial, at::kLong);
  batch.valid = kSamplesOfTrial;
  return batch;
}

// Calls what is the unit's; any exception is told with its name.
template <class Call>
auto of_unit(const NamedUnit& unit, const std::string& what, const Call& call) {
  const std::string name = "unit " + quote(unit.name, 200) + ": ";
  try {
    return call();
  } catch (const Error& error) {
    throw UsageError(name + error.what(), error.hint());
  } catch (...) {
    throw UsageError(name + what + " throws: " + line_of_exception());
  }
}

// In the type of the unit's parameters.
Tensors arguments_of_trial(const NamedUnit& unit, const TensorMap& known,
                           const torch::nn::Module& module) {
  at::ScalarType type = at::kFloat;
  for (const NamedTensor& each : detail::parameters_of(module)) {
    if (each.tensor.is_floating_point()) type = each.tensor.scalar_type();
  }
  Tensors arguments;
  if (unit.flow.takes.empty()) arguments.push_back(known[0]);
  for (const std::string& name : unit.flow.takes) arguments.push_back(known.at(name));
  for (at::Tensor& each : arguments) {
    if (each.is_floating_point()) each = each.to(type);
  }
  return arguments;
}

void check_given(const NamedUnit& unit, const Tensors& outputs) {
  const std::string name = "unit " + quote(unit.name, 200) + " gives ";
  if (outputs.size() != unit.flow.gives.size()) {
    throw UsageError(name + plural(std::ssize(outputs), "tensor") + ", not " +
                         std::to_string(unit.flow.gives.size()),
                     "name what forward() returns in the unit's UnitFlow");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const UnitTensor& said = unit.flow.gives[i];
    std::vector<std::int64_t> shape = said.shape;
    shape.insert(shape.begin(), kSamplesOfTrial);
    const at::Tensor& found = outputs[i];
    if (found.defined() && found.sizes() == at::IntArrayRef(shape)) continue;
    throw UsageError(name + (found.defined() ? shape_text(found.sizes()) : "nothing") + " as " +
                         quote(said.name, 200) + ", not " + shape_text(shape),
                     "say what it gives for one sample as its output_shape");
  }
}

Tensors pass_for_trial(const NamedUnit& unit, const TensorMap& known) {
  const UnitModule made = of_unit(unit, "its module", [&] { return unit.make(); });
  if (made.module == nullptr)
    throw UsageError("unit " + quote(unit.name, 200) + " makes no module");
  const Tensors arguments = arguments_of_trial(unit, known, *made.module);
  Tensors outputs = of_unit(unit, "forward()", [&] { return made.forward(arguments); });
  check_given(unit, outputs);
  return outputs;
}

// One sample of a batch.
Microbatch sample_of(const Microbatch& batch, std::int64_t index) {
  Microbatch one;
  for (const NamedTensor& each : batch.tensors) {
    one.tensors.add(each.name, each.tensor.narrow(0, index, 1));
  }
  one.sample_ids = batch.sample_ids.narrow(0, index, 1);
  one.valid = 1;
  return one;
}

// Far more than rounding, and less than what two random samples differ by.
bool is_near(const at::Tensor& one, const at::Tensor& other) {
  return at::allclose(one.to(at::kDouble), other.to(at::kDouble), 1e-3, 1e-5);
}

// A network whose loss a recipe has written, as an evaluation passes it.
class ExpressionTrial {
 public:
  explicit ExpressionTrial(const RowModel& row)
      : row_(row), unit_(row.units.front()), made_(unit_.make()) {
    made_.module->eval();
  }

  // Returns the tensors of the unit, and behind them the sum of the losses.
  [[nodiscard]] TensorMap judge(const Microbatch& samples) const {
    const Tensors given = made_.forward(arguments_of_trial(unit_, samples.tensors, *made_.module));
    TensorMap outputs;
    for (std::size_t i = 0; i < given.size(); ++i) outputs.add(unit_.flow.gives[i].name, given[i]);
    outputs.add("the loss", row_.loss(outputs, samples).sum);
    return outputs;
  }

  void check_independent(const Microbatch& batch, const TensorMap& together) const {
    if (!is_near(judge(batch).at("the loss"), together.at("the loss"))) {
      throw UsageError("the loss is another each time", "it must not draw random numbers");
    }
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::int64_t i = 0; i < batch.samples(); ++i) {
      const TensorMap alone = judge(sample_of(batch, i));
      sum += alone.at("the loss");
      for (const UnitTensor& each : unit_.flow.gives) {
        const at::Tensor expected = together.at(each.name).narrow(0, i, 1);
        if (!is_near(alone.at(each.name), expected)) refuse_mixed(quote(each.name, 200));
      }
    }
    if (!is_near(sum, together.at("the loss"))) refuse_mixed("the loss");
  }

  void check_trains(const Microbatch& batch) const {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor loss = judge(batch).at("the loss");
    bool depends = false;
    try {
      if (loss.requires_grad()) {
        for (const at::Tensor& each :
             torch::autograd::grad({loss}, made_.module->parameters(), {}, std::nullopt,
                                   /*create_graph=*/false, /*allow_unused=*/true)) {
          depends = depends || each.defined();
        }
      }
    } catch (const c10::Error&) {
      throw UsageError("the loss has no gradient: " + line_of_exception(),
                       "write it with operators that have one");
    }
    if (depends) return;
    throw UsageError("the loss depends on no parameter in a way that has a gradient",
                     "detach() and whole numbers cut it off: nothing would be trained");
  }

 private:
  [[noreturn]] static void refuse_mixed(const std::string& name) {
    throw UsageError(name + " of a sample depends on other samples",
                     "where [samples, 1] and [samples] meet, torch makes [samples, samples] of "
                     "them: outputs[:, 0] is [samples]");
  }

  const RowModel& row_;
  const NamedUnit& unit_;
  UnitModule made_;
};

bool is_finite(const TensorMap& tensors) {
  return std::ranges::all_of(tensors, [](const NamedTensor& each) {
    return at::isfinite(each.tensor).all().item<bool>();
  });
}

// Moves the numbers of a batch to where logarithms, roots and temperatures are: the first time
// nowhere.
Microbatch moved(Microbatch batch, int time) {
  for (NamedTensor& each : batch.tensors) {
    if (!each.tensor.is_floating_point() || time == 0) continue;
    const at::Tensor positive = each.tensor.abs();
    each.tensor = time == 1   ? positive + 0.1
                  : time == 2 ? 10 + 10 * positive
                              : at::fmod(positive / 4, 1);
  }
  return batch;
}

}  // namespace

void try_expression(const RowModel& row) {
  constexpr int kTimes = 4;
  const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
  detail::seed_generators(at::kCPU, 1);
  const at::NoGradGuard no_grad;
  const ExpressionTrial trial(row);
  const Microbatch drawn = samples_for_trial(row.sample);
  for (int time = 0; time < kTimes; ++time) {
    const Microbatch batch = moved(drawn, time);
    const TensorMap together = trial.judge(batch);
    if (!is_finite(together)) continue;
    trial.check_independent(batch, together);
    trial.check_trains(batch);
    return;
  }
  throw UsageError("the loss is not finite for any inputs that it was tried with",
                   "these were numbers of both signs, small and large positive ones, and numbers "
                   "from 0 to 1");
}

void try_row(const RowModel& given, const LossOptions& loss) {
  const RowModel row = with_expression(given, loss);
  // Collectives need the groups of a run.
  if (std::ranges::any_of(row.units, &NamedUnit::runs_without_samples)) return;
  const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
  const at::NoGradGuard no_grad;
  const Microbatch batch = samples_for_trial(row.sample);
  TensorMap known = batch.tensors, outputs;
  for (const NamedUnit& unit : with_default_takes(row.units)) {
    const Tensors given = pass_for_trial(unit, known);
    outputs = TensorMap();
    for (std::size_t i = 0; i < given.size(); ++i) {
      outputs.add(unit.flow.gives[i].name, given[i]);
      known.set(unit.flow.gives[i].name, given[i]);
    }
  }
  if (expression_of(loss) != nullptr) return try_expression(row);
  try {
    if (row.loss) {
      (void)row.loss(outputs, batch);
    } else {
      const LossTargets targets = LossTargets::of(batch, row.sample.target().name);
      (void)loss.kind().make(loss.options())->of(outputs[0], targets);
    }
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw UsageError("the loss throws: " + line_of_exception());
  }
}

}  // namespace troika
