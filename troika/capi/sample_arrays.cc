#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/capi/sample_arrays.h>
#include <troika/nn/microbatch.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>

namespace troika {
namespace {

std::string_view word_of(TensorRole role) {
  return role == TensorRole::kInput ? "input" : "target";
}

std::string title_of(const TensorSpec& spec) {
  return std::string(word_of(spec.role)) + " " + quote(spec.name, 200);
}

std::string names_of_specs(std::span<const TensorSpec> specs) {
  std::vector<std::string> names;
  for (const TensorSpec& each : specs) {
    names.push_back(quote(each.name, 200) + (each.optional ? " (optional)" : ""));
  }
  return join(names, ", ");
}

std::string hint_of(std::span<const TensorSpec> specs, std::string_view role) {
  if (specs.empty()) return "the model has no " + std::string(role) + "s";
  return "the " + std::string(role) + "s of the model: " + names_of_specs(specs);
}

std::vector<std::int64_t> shape_for(const TensorSpec& spec, std::int64_t samples) {
  std::vector<std::int64_t> shape = spec.shape;
  shape.insert(shape.begin(), samples);
  return shape;
}

at::ScalarType type_for(const TensorSpec& spec, at::ScalarType floating) {
  return at::isFloatingType(spec.dtype) ? floating : spec.dtype;
}

bool takes_whole_numbers(const TensorSpec& spec) {
  return spec.range > 0 || !at::isFloatingType(spec.dtype);
}

// True where a target says that it is missing.
at::Tensor is_missing(const TensorSpec& spec, const at::Tensor& values) {
  if (spec.role != TensorRole::kTarget) return at::zeros_like(values, at::kBool);
  const at::Tensor no_number = values.ne(values);
  return at::isFloatingType(spec.dtype) ? no_number
                                        : no_number.logical_or(values == kIgnoredTarget);
}

at::Tensor is_allowed(const TensorSpec& spec, const at::Tensor& values) {
  at::Tensor allowed = values.trunc() == values;
  if (spec.range > 0) {
    allowed.logical_and_(values >= 0).logical_and_(values < spec.range);
  } else {
    allowed.logical_and_(at::isfinite(values));
  }
  return allowed;
}

bool weighs_samples(const TensorSpec& spec) {
  return spec.role == TensorRole::kTarget && spec.optional && spec.name == kSampleWeights;
}

std::string number_text(const at::Tensor& value) {
  std::ostringstream text;
  if (value.is_floating_point()) {
    text << value.item<double>();
  } else {
    text << value.item<std::int64_t>();
  }
  return text.str();
}

void check_range(const TensorSpec& spec, const at::Tensor& values, const at::Tensor& missing) {
  const at::Tensor refused = is_allowed(spec, values).logical_or_(missing).logical_not_();
  if (!refused.any().item<bool>()) return;
  const std::int64_t first = refused.view(-1).to(at::kByte).argmax().item<std::int64_t>();
  std::string numbers = "a whole number";
  if (spec.range > 0) numbers += " from 0 to " + std::to_string(spec.range - 1);
  std::string hint = "samples are counted from 0";
  if (spec.role == TensorRole::kTarget) {
    hint += at::isFloatingType(spec.dtype) ? "; a target that is missing is NaN"
                                           : "; a target that is missing is NaN, or -100";
  }
  throw UsageError(title_of(spec) + ": sample " + std::to_string(first / values_of(spec)) +
                       " has " + number_text(values.view(-1)[first]) + ", not " + numbers,
                   hint);
}

void check_weights(const TensorSpec& spec, const at::Tensor& values) {
  const at::Tensor weights = values.to(at::kDouble);
  const at::Tensor refused = (weights >= 0).logical_and_(at::isfinite(weights)).logical_not_();
  if (!refused.any().item<bool>()) return;
  const std::int64_t first = refused.view(-1).to(at::kByte).argmax().item<std::int64_t>();
  throw UsageError(title_of(spec) + ": sample " + std::to_string(first) + " has " +
                       number_text(values.view(-1)[first]),
                   "a sample weighs 0 or more; samples are counted from 0");
}

at::Tensor converted(const TensorSpec& spec, const at::Tensor& array, std::int64_t samples,
                     at::ScalarType floating) {
  check_count(spec, title_of(spec), samples, array.numel());
  at::Tensor values = array.reshape(shape_for(spec, samples));
  if (samples > 0 && takes_whole_numbers(spec)) {
    if (!values.is_floating_point()) values = values.to(at::kLong);
    const at::Tensor missing = is_missing(spec, values);
    check_range(spec, values, missing);
    if (!at::isFloatingType(spec.dtype)) values = values.masked_fill(missing, kIgnoredTarget);
  }
  if (samples > 0 && weighs_samples(spec)) check_weights(spec, values);
  // A copy: a module may write to its input, and the caller's array is only read.
  return values.to(type_for(spec, floating), /*non_blocking=*/false, /*copy=*/true);
}

// The arrays of one role, each asked for once by its name.
class ArraysByName {
 public:
  ArraysByName(const SampleSpec& sample, TensorRole role, const NamedArrays& arrays)
      : sample_(sample), role_(role), arrays_(arrays) {
    for (const NamedTensor& each : arrays) {
      const bool known = std::ranges::any_of(sample.tensors, [&](const TensorSpec& spec) {
        return spec.role == role && spec.name == each.name;
      });
      if (!known) (void)spec_named(specs_of(sample, role), each.name, word_of(role));
      if (std::ranges::count(arrays, each.name, &NamedTensor::name) == 1) continue;
      throw UsageError(std::string(word_of(role)) + " " + quote(each.name, 200) +
                       " is given twice");
    }
  }

  // Returns null for an optional array that is not there.
  [[nodiscard]] const at::Tensor* find(const TensorSpec& spec) {
    const auto found = std::ranges::find(arrays_, spec.name, &NamedTensor::name);
    if (found == arrays_.end()) {
      if (!spec.optional) {
        throw UsageError(title_of(spec) + " is missing",
                         hint_of(specs_of(sample_, role_), word_of(role_)));
      }
      left_out_ = left_out_.empty() ? spec.name : left_out_;
      return nullptr;
    }
    if (left_out_.empty()) return &found->tensor;
    throw UsageError(title_of(spec) + " is given without " + quote(left_out_, 200));
  }

 private:
  const SampleSpec& sample_;
  TensorRole role_;
  const NamedArrays& arrays_;
  std::string left_out_;
};

}  // namespace

std::int64_t values_of(const TensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

std::vector<TensorSpec> specs_of(const SampleSpec& sample, TensorRole role) {
  std::vector<TensorSpec> specs;
  for (const TensorSpec& each : sample.tensors) {
    if (each.role == role) specs.push_back(each);
  }
  return specs;
}

const TensorSpec& only_spec(std::span<const TensorSpec> specs, std::string_view role,
                            const std::string& hint) {
  const auto needed = std::ranges::count_if(specs, [](const auto& each) { return !each.optional; });
  if (needed == 1) return specs.front();
  throw UsageError("the model has " + plural(std::ssize(specs), role) +
                       (specs.empty() ? "" : ": " + names_of_specs(specs)),
                   hint);
}

const TensorSpec& spec_named(std::span<const TensorSpec> specs, std::string_view name,
                             std::string_view role) {
  const auto found = std::ranges::find(specs, name, &TensorSpec::name);
  if (found != specs.end()) return *found;
  throw UsageError("the model has no " + std::string(role) + " " + quote(name, 200),
                   hint_of(specs, role));
}

void check_samples(std::int64_t samples) {
  if (samples < 0) throw UsageError("a negative number of samples: " + std::to_string(samples));
}

void check_count(const TensorSpec& spec, const std::string& title, std::int64_t samples,
                 std::int64_t count) {
  const std::int64_t each = values_of(spec);
  if (each == 0 ? count == 0 : count % each == 0 && count / each == samples) return;
  std::ostringstream shape;
  shape << at::IntArrayRef(spec.shape);
  throw UsageError(title + " has " + plural(count, "value") + " for " + plural(samples, "sample"),
                   "one sample has " + plural(each, "value") + ", of shape " + shape.str());
}

TensorMap sample_tensors(const SampleSpec& sample, const ArrayBatch& batch,
                         at::ScalarType floating) {
  check_samples(batch.samples);
  ArraysByName inputs(sample, TensorRole::kInput, batch.inputs);
  ArraysByName targets(sample, TensorRole::kTarget, batch.targets);
  TensorMap tensors;
  for (const TensorSpec& spec : sample.tensors) {
    const bool is_input = spec.role == TensorRole::kInput;
    const at::Tensor* array = (is_input ? inputs : targets).find(spec);
    if (array == nullptr) continue;
    tensors.add(spec.name, converted(spec, *array, batch.samples, floating));
  }
  return tensors;
}

TensorMap input_tensors(const SampleSpec& sample, std::int64_t samples, const NamedArrays& inputs,
                        at::ScalarType floating) {
  check_samples(samples);
  ArraysByName given(sample, TensorRole::kInput, inputs);
  TensorMap tensors;
  for (const TensorSpec& spec : sample.tensors) {
    if (spec.role == TensorRole::kInput) {
      if (const at::Tensor* array = given.find(spec)) {
        tensors.add(spec.name, converted(spec, *array, samples, floating));
      }
    } else if (!spec.optional) {
      tensors.add(spec.name, at::zeros(shape_for(spec, samples), type_for(spec, floating)));
    }
  }
  return tensors;
}

std::string optional_arrays(const SampleSpec& sample, const TensorMap& tensors) {
  if (tensors.size() == 0 || tensors[0].size(0) == 0) return "";
  std::vector<std::string> given;
  for (const TensorSpec& each : sample.tensors) {
    if (each.optional && tensors.find(each.name) != nullptr) given.push_back(quote(each.name, 200));
  }
  return given.empty() ? "no optional array" : "with " + join(given, ", ");
}

TensorMap without_samples(const SampleSpec& sample, at::ScalarType floating) {
  TensorMap tensors;
  for (const TensorSpec& spec : sample.tensors) {
    if (!spec.optional) {
      tensors.add(spec.name, at::empty(shape_for(spec, 0), type_for(spec, floating)));
    }
  }
  return tensors;
}

std::int64_t targets_that_count(const SampleSpec& sample, const TensorMap& tensors) {
  const at::Tensor& targets = tensors.at(sample.target().name);
  if (targets.is_floating_point()) return targets.size(0);
  return targets.ne(kIgnoredTarget).sum().item<std::int64_t>();
}

}  // namespace troika
