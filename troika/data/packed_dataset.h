// Data sets of stored documents: text files and token shards.
#pragma once

#include <troika/data/dataset.h>

#include <memory>

namespace troika {

// For data.kind = "text" and "tokens" and a language model. Throws as open_dataset does.
[[nodiscard]] std::unique_ptr<Dataset> open_packed_dataset(const DataRecipe& data,
                                                           const ModelRecipe& model,
                                                           std::uint64_t seed);

}  // namespace troika
