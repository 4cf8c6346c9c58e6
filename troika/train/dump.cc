#include <ATen/ATen.h>
#include <troika/base/file.h>
#include <troika/train/dump.h>

namespace troika {

std::filesystem::path dump_folder(const std::filesystem::path& run, std::int64_t step) {
  return run / "dump" / ("step-" + std::to_string(step));
}

void dump_tensors(const std::filesystem::path& folder, const std::string& what,
                  std::span<const NamedTensor> tensors) {
  make_folders(folder);
  save_tensors(folder / (what + ".safetensors"), tensors);
}

void dump_batch(const std::filesystem::path& folder, const Dataset& dataset, IndexRange samples,
                std::int64_t step) {
  const std::vector<Microbatch> whole =
      build_microbatches(dataset, Split::kTrain, samples, samples.count, step);
  const Microbatch& batch = whole.front();
  std::vector<NamedTensor> tensors(batch.tensors.begin(), batch.tensors.end());
  tensors.push_back({"sample_ids", batch.sample_ids});
  dump_tensors(folder, "batch", tensors);
}

}  // namespace troika
