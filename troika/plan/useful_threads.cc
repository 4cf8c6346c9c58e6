#include <troika/plan/useful_threads.h>

#include <algorithm>
#include <cstdint>

namespace troika {
namespace {

// Multiplications and additions of the largest matrix product that recurs in a microbatch.
double work_of_product(const Recipe& recipe) {
  const ModelRecipe& model = recipe.model;
  const auto samples = static_cast<double>(recipe.train.micro_batch_size);
  if (model.kind == ModelKind::kGpt) {
    const double rows = samples * static_cast<double>(model.seq_len);
    const double split = static_cast<double>(recipe.parallel.tensor * recipe.parallel.context);
    return rows * static_cast<double>(model.dim) *
           static_cast<double>(std::max(model.dim, model.ffn_dim)) / split;
  }
  double largest = 0;
  std::int64_t before = model.input_dim;
  for (const std::int64_t dim : model.hidden_dims) {
    largest = std::max(largest, static_cast<double>(before) * static_cast<double>(dim));
    before = dim;
  }
  return samples * largest / static_cast<double>(recipe.parallel.tensor);
}

}  // namespace

int useful_threads(const Recipe& recipe, int available) {
  constexpr double kWorkOfThread = 4e6;  // some 100 us: many times what it takes to wake a thread
  const double threads = work_of_product(recipe) / kWorkOfThread;
  return static_cast<int>(std::clamp<double>(threads, 1, std::max(1, available)));
}

}  // namespace troika
