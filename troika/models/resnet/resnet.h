// A residual network (He et al. 2015, "Deep residual learning for image recognition"), written as
// modules of torch::nn with autograd. Parameters and buffers have the names of torchvision's.
#pragma once

#include <troika/models/model.h>
#include <troika/models/resnet/options.h>

#include <string>
#include <vector>

namespace troika {

// Units: the stem, each block, and the head (average pool, linear layer, cross-entropy). Weights of
// convolutions start normal with deviation sqrt(2 / (out channels x kernel area)) (He et al. 2015,
// "Delving deep into rectifiers", equation 14), norms at 1 and 0. Shortcuts that change the shape
// are 1x1 convolutions (option B). In a bottleneck the 3x3 convolution has the stride.
[[nodiscard]] Model build_resnet(const ResnetOptions& options, const LossOptions& loss = {},
                                 const ModelLayout& layout = {});

// Returns the name of each unit: "stem", "layer1.0", ..., "head".
[[nodiscard]] std::vector<std::string> resnet_unit_names(const ResnetOptions& options);

}  // namespace troika
