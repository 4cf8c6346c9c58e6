#include <troika/base/error.h>
#include <troika/data/dataset.h>

namespace troika {

std::unique_ptr<KeptColumns> Dataset::open_columns(std::span<const std::string> /*names*/) const {
  throw UsageError("--keep is for tables: other samples have no columns");
}

std::vector<DataFile> Dataset::files() const {
  return {};
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
