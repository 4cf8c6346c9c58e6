// The modules of a residual network. Internal to this folder.
#pragma once

#include <torch/torch.h>
#include <troika/comm/group.h>
#include <troika/models/resnet/options.h>
#include <troika/nn/normalized_images.h>
#include <troika/nn/sync_batch_norm.h>

#include <cstdint>
#include <functional>

namespace troika {

// The settings of every norm of the network.
struct ResnetNorm {
  double eps, momentum;
  BatchNormKind kind;
  Group data;  // the ranks whose microbatches are one, where kind is kSynchronised
  Seconds timeout;
};

struct BlockShape {
  std::int64_t in, width, out, stride;
  bool bottleneck;
};

// Applies a norm of either kind, adds a shortcut where it is defined, and applies ReLU.
// register_norm() adds the norm to `parent` as `name`.
using NormFunction =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor& shortcut, ops::Relu)>;
[[nodiscard]] NormFunction register_norm(torch::nn::Module& parent, const std::string& name,
                                         std::int64_t channels, const ResnetNorm& norm);

// Maps images [n, channels, size, size] of any floating type to the first activations, of `type`.
class ResnetStemModuleImpl : public torch::nn::Module {
 public:
  ResnetStemModuleImpl(const ResnetOptions& options, const ResnetNorm& norm,
                       at::MemoryFormat format, at::ScalarType type);
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d conv1_;
  NormFunction norm_;
  bool pools_;
  at::MemoryFormat format_;
  at::ScalarType type_;
};
TORCH_MODULE(ResnetStemModule);

// Two 3x3 convolutions, or a bottleneck, around a shortcut.
class ResnetBlockModuleImpl : public torch::nn::Module {
 public:
  ResnetBlockModuleImpl(const BlockShape& shape, const ResnetNorm& norm, at::MemoryFormat format);
  at::Tensor forward(const at::Tensor& input);

 private:
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<NormFunction> norms_;
  torch::nn::Conv2d projection_ = nullptr;
  NormFunction projection_norm_;
  at::MemoryFormat format_;
};
TORCH_MODULE(ResnetBlockModule);

// Average over the image, and a linear layer to the classes.
class ResnetHeadModuleImpl : public torch::nn::Module {
 public:
  ResnetHeadModuleImpl(std::int64_t channels, std::int64_t classes);
  at::Tensor forward(const at::Tensor& input);

 private:
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResnetHeadModule);

}  // namespace troika
