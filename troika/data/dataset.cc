#include <troika/base/error.h>
#include <troika/data/dataset.h>
#include <troika/data/packed_dataset.h>
#include <troika/data/random_dataset.h>

namespace troika {

std::unique_ptr<Dataset> open_dataset(const DataRecipe& data, const ModelRecipe& model,
                                      std::uint64_t seed) {
  if (data.kind == DataKind::kRandom) return open_random_dataset(data, model, seed);
  if (model.kind != ModelKind::kGpt) {
    throw UsageError("data.kind = \"text\" and \"tokens\" need model.kind = \"gpt\"",
                     "set data.kind = \"random\" for this model");
  }
  return open_packed_dataset(data, model, seed);
}

std::vector<Microbatch> build_microbatches(const Dataset& dataset, Split split, IndexRange range,
                                           std::int64_t micro_batch_size, std::int64_t step) {
  std::vector<Microbatch> microbatches;
  std::vector<SampleRef> samples;
  for (const IndexRange indices : microbatches_of(range, micro_batch_size)) {
    samples.clear();
    for (std::int64_t i = 0; i < indices.count; ++i) {
      samples.push_back(dataset.at(split, indices.first + i));
    }
    const auto index = static_cast<int>(microbatches.size());
    microbatches.push_back(dataset.microbatch(split, samples, step));
    microbatches.back().index = index;
  }
  return microbatches;
}

}  // namespace troika
