// How a model stands in a folder of Hugging Face's libraries.
#pragma once

#include <troika/param/joined_tensor.h>

#include <string>
#include <vector>

namespace troika {

// A tensor that a tied model leaves out, as it has the values of another. A file may have it all
// the same, with those values or with others.
struct TiedTensor {
  std::string name;     // "lm_head.weight"
  std::string same_as;  // "model.embed_tokens.weight"
  std::string key;      // of [model], which is false where they are two: "tied_embeddings"
};

struct HubForm {
  std::string config;                 // config.json
  std::vector<JoinedTensor> tensors;  // each of ours is in one of them
  // Ends of names of tensors that such files may have beside these, which hold nothing to learn.
  std::vector<std::string> ignored = {};
  std::vector<TiedTensor> tied = {};  // their names are in `ignored`, too
};

}  // namespace troika
