// How a model stands in a folder of Hugging Face's libraries.
#pragma once

#include <troika/param/joined_tensor.h>

#include <string>
#include <vector>

namespace troika {

struct HubForm {
  std::string config;                 // config.json
  std::vector<JoinedTensor> tensors;  // each of ours is in one of them
  // Ends of names of tensors that such files may have beside these, which hold nothing to learn.
  std::vector<std::string> ignored = {};
};

}  // namespace troika
