// Dumps of chosen steps, whole and under global names, for judging troika by other programs:
// <run>/dump/step-<K>/{parameters,gradients,batch}.safetensors.
#pragma once

#include <troika/data/dataset.h>
#include <troika/param/arena.h>

#include <filesystem>

namespace troika {

[[nodiscard]] std::filesystem::path dump_folder(const std::filesystem::path& run,
                                                std::int64_t step);

// The masters, as they are now.
void dump_parameters(const std::filesystem::path& folder, const Arena& arena);
// The gradients times `scale`, which makes sums of means.
void dump_gradients(const std::filesystem::path& folder, const Arena& arena, double scale);
// The samples of a step over all ranks, in order: input_ids (or features), targets, sample_ids, and
// document_ids where packed documents are kept apart.
void dump_batch(const std::filesystem::path& folder, const Dataset& dataset, Share samples,
                std::int64_t step);

}  // namespace troika
