#include <troika/plan/useful_threads.h>

#include <algorithm>
#include <cstdint>

namespace troika {
namespace {

// Multiplications and additions of the largest product that recurs in a microbatch.
double work_of_product(const Recipe& recipe) {
  const auto samples = static_cast<double>(recipe.train.micro_batch_size);
  const auto split = static_cast<double>(recipe.parallel.tensor * recipe.parallel.context);
  return samples * traits_of(recipe.model).largest_product / split;
}

}  // namespace

int useful_threads(const Recipe& recipe, int available) {
  constexpr double kWorkOfThread = 4e6;  // some 100 us: many times what it takes to wake a thread
  const double threads = work_of_product(recipe) / kWorkOfThread;
  return static_cast<int>(std::clamp<double>(threads, 1, std::max(1, available)));
}

}  // namespace troika
