// Dumps of chosen steps, whole and under global names, for judging troika by other programs:
// <run>/dump/step-<K>/{parameters,gradients,batch}.safetensors.
#pragma once

#include <troika/checkpoint/tensors.h>
#include <troika/data/dataset.h>

#include <filesystem>
#include <span>
#include <string>

namespace troika {

[[nodiscard]] std::filesystem::path dump_folder(const std::filesystem::path& run,
                                                std::int64_t step);

// Writes whole tensors under global names to <folder>/<what>.safetensors: "parameters" or
// "gradients".
void dump_tensors(const std::filesystem::path& folder, const std::string& what,
                  std::span<const NamedTensor> tensors);
// Writes the samples of a step over all ranks, in order: input_ids (or features), targets,
// sample_ids, and document_ids where packed documents are kept apart.
void dump_batch(const std::filesystem::path& folder, const Dataset& dataset, IndexRange samples,
                std::int64_t step);

}  // namespace troika
