#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/models/model.h>
#include <troika/train/dump.h>
#include <troika/train/saved_model.h>
#include <troika/verify/comparison.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace troika {
namespace {

constexpr std::uint64_t kMostMetricsBytes = 1 << 24;

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

const NamedTensor* find(std::span<const NamedTensor> tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " of " << c10::toString(tensor.scalar_type());
  return text.str();
}

struct Figures {
  std::vector<double> losses, norms;
};

Figures read_figures(const std::filesystem::path& run) {
  const std::filesystem::path path = run / "metrics.jsonl";
  std::istringstream lines(read_file(path, kMostMetricsBytes));
  Figures figures;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("loss") || !json.contains("grad_norm")) {
      throw DataError(shown_path(path) + ": a line is no step's metrics");
    }
    const auto number = [](const nlohmann::json& value) {
      return value.is_number() ? value.get<double>() : std::nan("");
    };
    figures.losses.push_back(number(json["loss"]));
    figures.norms.push_back(number(json["grad_norm"]));
  }
  return figures;
}

std::vector<NamedTensor> load(const std::filesystem::path& run, std::int64_t step,
                              const std::string& what) {
  return load_tensors(dump_folder(run, step) / (what + ".safetensors"));
}

}  // namespace

std::vector<NamedTensor> with_missing_apart(std::vector<NamedTensor> tensors) {
  std::vector<NamedTensor> places;
  for (NamedTensor& each : tensors) {
    if (!each.tensor.is_floating_point()) continue;
    const at::Tensor missing = each.tensor.isnan();
    if (!missing.any().item<bool>()) continue;
    each.tensor = each.tensor.masked_fill(missing, 0);
    places.push_back({each.name + ", what is missing", missing});
  }
  for (NamedTensor& each : places) tensors.push_back(std::move(each));
  return tensors;
}

void RunComparison::record_mismatch(const std::string& what) {
  result_.same_bits = false;
  if (result_.first_difference.empty()) result_.first_difference = what;
  if (std::isinf(result_.of_tolerance)) return;
  result_.of_tolerance = result_.difference = std::numeric_limits<double>::infinity();
  result_.largest_of = what;
}

void RunComparison::record_difference(const std::string& what, double difference, double allowed) {
  if (difference == 0) return;
  if (!std::isfinite(difference)) return record_mismatch(what);
  result_.same_bits = false;
  const double ratio = allowed > 0 ? difference / allowed : std::numeric_limits<double>::infinity();
  if (ratio > 1 && result_.first_difference.empty()) result_.first_difference = what;
  if (ratio <= result_.of_tolerance) return;
  result_.of_tolerance = ratio;
  result_.difference = difference;
  result_.largest_of = what;
}

void RunComparison::compare(std::string_view what, std::span<const NamedTensor> expected,
                            std::span<const NamedTensor> actual, Tolerance tolerance) {
  const std::string prefix = std::string(what) + ": ";
  double of_all = 0;
  for (const NamedTensor& entry : expected) of_all = std::max(of_all, largest(entry.tensor));
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& entry : expected) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, {}, [this](const NamedTensor* entry) {
    return std::ranges::find(order_, entry->name) - order_.begin();
  });
  for (const NamedTensor* entry : sorted) {
    const NamedTensor* other = find(actual, entry->name);
    if (other == nullptr) {
      record_mismatch(prefix + entry->name + " is missing");
      continue;
    }
    const at::Tensor &a = entry->tensor, &b = other->tensor;
    if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
      record_mismatch(prefix + entry->name + " is " + shape_of(b) + ", not " + shape_of(a));
    } else if (!a.equal(b)) {
      const double off = largest(b.to(at::kDouble) - a.to(at::kDouble));
      record_difference(prefix + entry->name, off,
                        tolerance.tau * largest(a) + tolerance.floor * of_all);
    }
  }
  for (const NamedTensor& entry : actual) {
    if (find(expected, entry.name) == nullptr)
      record_mismatch(prefix + entry.name + " is too much");
  }
}

void RunComparison::compare(std::string_view what, std::span<const double> expected,
                            std::span<const double> actual, Tolerance tolerance) {
  if (expected.size() != actual.size()) {
    return record_mismatch(std::string(what) + " of " + std::to_string(actual.size()) +
                           " steps, not of " + std::to_string(expected.size()));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    record_difference(std::string(what) + " of step " + std::to_string(i + 1),
                      std::abs(actual[i] - expected[i]),
                      (tolerance.tau + tolerance.floor) * std::abs(expected[i]));
  }
}

void RunComparison::compare_runs(const std::filesystem::path& expected,
                                 const std::filesystem::path& actual,
                                 std::span<const std::int64_t> dump_steps, Tolerance tolerance) {
  for (const std::int64_t step : dump_steps) {
    const std::string of_step = " of step " + std::to_string(step);
    const Tolerance of_parameters = step == 1 ? Tolerance::same_bits() : tolerance;
    compare("batch" + of_step, with_missing_apart(load(expected, step, "batch")),
            with_missing_apart(load(actual, step, "batch")), Tolerance::same_bits());
    compare("parameters" + of_step, load(expected, step, "parameters"),
            load(actual, step, "parameters"), of_parameters);
    compare("gradients" + of_step, load(expected, step, "gradients"),
            load(actual, step, "gradients"), tolerance);
  }
  const Figures a = read_figures(expected), b = read_figures(actual);
  compare("loss", a.losses, b.losses, tolerance);
  compare("grad_norm", a.norms, b.norms, tolerance);
  compare("saved model", load_tensors(model_path(expected)), load_tensors(model_path(actual)),
          tolerance);
}

std::vector<std::string> parameter_order(const Recipe& recipe) {
  std::vector<std::string> names;
  const Model model = build_model(recipe.model, static_cast<std::uint64_t>(recipe.seed));
  for (const auto& unit : model.units) {
    for (const ParameterSpec& spec : unit->specs()) {
      if (spec.tied_to.empty() && !spec.tied_replica) names.push_back(spec.name);
    }
  }
  return names;
}

}  // namespace troika
