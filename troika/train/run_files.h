// The files of a run's folder that a run goes on with beside a checkpoint: they lie with each
// checkpoint in an object store, for a machine that has nothing of the run.
#pragma once

#include <troika/storage/object_store.h>

#include <cstdint>
#include <filesystem>

namespace troika {

// Copies the recipe, metrics, and what the data say, to "step-00000100/run/" of a store. A file
// that is not there is left out. Throws StorageError.
void upload_run_files(const ObjectStore& store, std::int64_t step,
                      const std::filesystem::path& run);

// Copies them back, the recipe last. Throws DataError, StorageError.
void download_run_files(const ObjectStore& store, std::int64_t step,
                        const std::filesystem::path& run);

}  // namespace troika
