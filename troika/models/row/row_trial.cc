// Runs the units of a plug-in's model once on small inputs, so that wrong shapes are refused before
// a job starts.
#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/models/row/expression_row.h>
#include <troika/models/row/row_model.h>
#include <troika/models/row/thrown.h>
#include <troika/nn/module_tensors.h>
#include <troika/nn/random_draws.h>
#include <troika/param/shape_text.h>

#include <algorithm>
#include <cstdint>

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
  return at::allclose(one.to(at::kDouble), other.to(at::kDouble), 1e-3, 1e-5, true);
}

}  // namespace

void check_samples_apart(const RowModel& row) {
  const detail::EarlierDraws restored(at::kCPU, detail::generator_states(at::kCPU));
  const at::NoGradGuard no_grad;
  const Microbatch batch = samples_for_trial(row.sample);
  const NamedUnit& unit = row.units.front();
  const UnitModule made = unit.make();
  made.module->eval();
  at::Tensor sum = at::zeros({}, at::kDouble);
  const auto judge = [&](const Microbatch& samples) {
    const Tensors given = made.forward(arguments_of_trial(unit, samples.tensors, *made.module));
    TensorMap outputs;
    for (std::size_t i = 0; i < given.size(); ++i) outputs.add(unit.flow.gives[i].name, given[i]);
    outputs.add("the loss", row.loss(outputs, samples).sum);
    return outputs;
  };
  const auto refuse = [](const std::string& name) {
    throw UsageError(name + " of a sample depends on other samples",
                     "where [samples, 1] and [samples] meet, torch makes [samples, samples] of "
                     "them: outputs[:, 0] is [samples]");
  };
  const TensorMap together = judge(batch);
  for (std::int64_t i = 0; i < batch.samples(); ++i) {
    const TensorMap alone = judge(sample_of(batch, i));
    sum += alone.at("the loss");
    for (const UnitTensor& each : unit.flow.gives) {
      const at::Tensor expected = together.at(each.name).narrow(0, i, 1);
      if (!is_near(alone.at(each.name), expected)) refuse(quote(each.name, 200));
    }
  }
  if (!is_near(sum, together.at("the loss"))) refuse("the loss");
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
  if (expression_of(loss) != nullptr) return check_samples_apart(row);
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
