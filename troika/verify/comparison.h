// Whether two runs of one recipe came to the same numbers, judged by what they left in their run
// folders: dumps, metrics and the saved model. The one place that knows what "equal" means between
// layouts (docs/parallelism.md, "The same numbers").
#pragma once

#include <troika/checkpoint/tensors.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The largest allowed distance of a tensor g from g of the reference:
//   largest |difference| <= tau largest |g| + floor (largest element of all tensors of its file).
// Some gradients are zero but for rounding, such as a key bias': hence the second term.
struct Tolerance {
  double tau = 1e-12;
  double floor = 1e-14;

  [[nodiscard]] static Tolerance same_bits() { return {0, 0}; }
};

struct Comparison {
  bool same_bits = true;
  // The first value that exceeds its tolerance, in the order of the steps and of the model's units:
  // "gradients of step 1: model.norm.weight". Empty if all agree.
  std::string first_difference;
  // The largest difference as a multiple of its tolerance; infinite if the tolerance is zero.
  double of_tolerance = 0;
  // The difference itself, and the name of its tensor or figure.
  double difference = 0;
  std::string largest_of;

  [[nodiscard]] bool agrees() const { return first_difference.empty(); }
};

// Returns the tensors of a batch with targets that are missing (NaN) as 0, and where these are as
// tensors of their own: NaN equals nothing, and what is missing in both runs is the same.
[[nodiscard]] std::vector<NamedTensor> with_missing_apart(std::vector<NamedTensor> tensors);

class RunComparison {
 public:
  // Compares in `order`: global names of the parameters in the order of the model (see
  // parameter_order()). Tensors that are not in it come last.
  explicit RunComparison(std::vector<std::string> order = {}) : order_(std::move(order)) {}

  // Compares tensors, which must have the same names, types and shapes, and values within
  // `tolerance`. `what` goes before names: "gradients of step 1".
  void compare(std::string_view what, std::span<const NamedTensor> expected,
               std::span<const NamedTensor> actual, Tolerance tolerance);
  // Compares a figure of each step, relative to its own size.
  void compare(std::string_view what, std::span<const double> expected,
               std::span<const double> actual, Tolerance tolerance);
  // Compares two run folders: parameters, batch and gradients of each of `dump_steps` (ascending),
  // loss and norm of the gradients of every step, and the saved model. Batches, and the parameters
  // of step 1, must have the same bits in any case. Throws DataError where a file is missing.
  void compare_runs(const std::filesystem::path& expected, const std::filesystem::path& actual,
                    std::span<const std::int64_t> dump_steps, Tolerance tolerance);

  [[nodiscard]] const Comparison& result() const { return result_; }

 private:
  void record_difference(const std::string& what, double difference, double allowed);
  void record_mismatch(const std::string& what);

  std::vector<std::string> order_;
  Comparison result_;
};

// Returns global names of a model's parameters, unit by unit from the input to the output.
[[nodiscard]] std::vector<std::string> parameter_order(const Recipe& recipe);

}  // namespace troika
