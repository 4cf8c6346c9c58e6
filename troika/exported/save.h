// Writes an exported program with other values.
#pragma once

#include <troika/param/named_tensor.h>

#include <filesystem>
#include <vector>

namespace troika {

// Writes a copy of `from`, which torch.export.save() has written, with these values of parameters
// and buffers by name, for torch.export.load(). A tensor that `values` does not have stays as it
// is. Throws UsageError where `from` cannot be read, and StorageError.
void save_exported(const std::filesystem::path& from, const std::filesystem::path& to,
                   const std::vector<NamedTensor>& values);

}  // namespace troika
