// How Hugging Face's libraries cut the tensors of a large model into files, and the index that says
// which file holds which. Nothing here needs LibTorch.
#pragma once

#include <troika/checkpoint/safetensors_header.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

inline constexpr const char* kHubModelFile = "model.safetensors";
inline constexpr const char* kHubIndexFile = "model.safetensors.index.json";

struct HubFile {
  std::string name;  // model-00001-of-00003.safetensors; kHubModelFile where it is the only one
  std::vector<TensorEntry> tensors;
};

// Cuts tensors, in their order, into files of at most `max_bytes` of data each. A tensor that is
// larger has a file of its own. Requires shapes that tensor_bytes() takes.
[[nodiscard]] std::vector<HubFile> cut_into_hub_files(const std::vector<TensorEntry>& tensors,
                                                      std::uint64_t max_bytes);

// Returns the JSON text of an index.
[[nodiscard]] std::string format_hub_index(const std::vector<HubFile>& files);

// Returns the file of each tensor. Throws DataError naming `source`: no such JSON, or a file whose
// name leads out of its folder.
[[nodiscard]] std::map<std::string, std::string> parse_hub_index(std::string_view text,
                                                                 const std::string& source);

}  // namespace troika
