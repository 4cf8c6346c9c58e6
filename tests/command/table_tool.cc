// Loads the samples of a recipe's data as a run does, without a model: table_tool RECIPE SAMPLES.
// Prints one line of JSON: samples, seconds from opening on and of loading alone, and peak memory.
#include <troika/base/time.h>
#include <troika/data/loader.h>
#include <troika/observe/resources.h>
#include <troika/recipe/recipe_file.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "support/tool_main.h"

namespace troika {
namespace {

int run(std::span<char*> arguments) {
  if (arguments.size() != 3) return 2;
  const std::int64_t samples = std::stoll(arguments[2]);
  const Recipe recipe = load_recipe(arguments[1]).recipe;
  const auto started = Clock::now();
  const std::shared_ptr<const Dataset> dataset = open_dataset(
      recipe.data, traits_of(recipe.model).sample, static_cast<std::uint64_t>(recipe.seed));
  LoaderOptions options;
  options.global_batch_size = recipe.train.global_batch_size;
  options.micro_batch_size = recipe.train.micro_batch_size;
  const auto opened = Clock::now();
  Loader loader(dataset, options);
  std::int64_t loaded = 0;
  double sum = 0;  // so that each value has been there
  while (loaded < samples) {
    for (const Microbatch& each : loader.next(Deadline::in(Seconds(600))).microbatches) {
      sum += each.tensors[0].const_data_ptr<float>()[0];
      loaded += each.samples();
    }
  }
  const auto ended = Clock::now();
  std::printf(
      "{\"samples\": %lld, \"open_seconds\": %.3f, \"load_seconds\": %.3f, "
      "\"peak_memory_bytes\": %lld, \"sum\": %g}\n",
      static_cast<long long>(loaded), Seconds(opened - started).count(),
      Seconds(ended - opened).count(), static_cast<long long>(resource_use().peak_memory_bytes),
      sum);
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  return troika::test::tool_main(argc, argv, troika::run);
}
