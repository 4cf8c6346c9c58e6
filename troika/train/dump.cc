#include <ATen/ATen.h>
#include <troika/base/file.h>
#include <troika/checkpoint/tensors.h>
#include <troika/train/dump.h>

namespace troika {

std::filesystem::path dump_folder(const std::filesystem::path& run, std::int64_t step) {
  return run / "dump" / ("step-" + std::to_string(step));
}

void dump_parameters(const std::filesystem::path& folder, const Arena& arena) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : arena.parameters()) {
    tensors.push_back({parameter->spec().name, parameter->master()});
  }
  make_folders(folder);
  save_tensors(folder / "parameters.safetensors", tensors);
}

void dump_gradients(const std::filesystem::path& folder, const Arena& arena, double scale) {
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : arena.parameters()) {
    tensors.push_back({parameter->spec().name, parameter->gradient() * scale});
  }
  make_folders(folder);
  save_tensors(folder / "gradients.safetensors", tensors);
}

void dump_batch(const std::filesystem::path& folder, const Dataset& dataset, Share samples,
                std::int64_t step) {
  const std::vector<Microbatch> whole =
      build_microbatches(dataset, Split::kTrain, samples, samples.count, step);
  const Microbatch& batch = whole.front();
  std::vector<NamedTensor> tensors = {
      {batch.inputs.scalar_type() == at::kLong ? "input_ids" : "features", batch.inputs},
      {"targets", batch.targets},
      {"sample_ids", batch.sample_ids}};
  if (batch.document_ids.defined()) tensors.push_back({"document_ids", batch.document_ids});
  make_folders(folder);
  save_tensors(folder / "batch.safetensors", tensors);
}

}  // namespace troika
