#include <troika/models/resnet/blocks.h>
#include <troika/nn/convolution.h>

namespace troika {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// As a product where that is faster. Evaluations differentiate more than once.
at::Tensor applied(torch::nn::Conv2d& module, const at::Tensor& input) {
  if (!module->is_training()) return module->forward(input);
  return convolve(input, module->weight, module->options.stride()->front(),
                  module->weight.size(2) / 2);
}

}  // namespace

NormFunction register_norm(torch::nn::Module& parent, const std::string& name,
                           std::int64_t channels, const ResnetNorm& norm) {
  const auto options = torch::nn::BatchNormOptions(channels).eps(norm.eps).momentum(norm.momentum);
  if (norm.kind == BatchNormKind::kSynchronised && norm.data.size() > 1) {
    auto module = parent.register_module(name, SyncBatchNorm(options, norm.data, norm.timeout));
    return [module](const at::Tensor& input, const at::Tensor& shortcut, ops::Relu relu) mutable {
      return with_shortcut(module->forward(input), shortcut, relu);
    };
  }
  auto module = parent.register_module(name, torch::nn::BatchNorm2d(options));
  return [module](const at::Tensor& input, const at::Tensor& shortcut, ops::Relu relu) mutable {
    return normalized(*module, input, shortcut, relu);
  };
}

ResnetStemModuleImpl::ResnetStemModuleImpl(const ResnetOptions& options, const ResnetNorm& norm,
                                           at::MemoryFormat format, at::ScalarType type)
    : conv1_(options.stem == ResnetStem::k224 ? convolution(options.channels, options.width, 7, 2)
                                              : convolution(options.channels, options.width, 3, 1)),
      pools_(options.stem == ResnetStem::k224),
      format_(format),
      type_(type) {
  register_module("conv1", conv1_);
  norm_ = register_norm(*this, "bn1", options.width, norm);
}

at::Tensor ResnetStemModuleImpl::forward(const at::Tensor& images) {
  const at::Tensor input = images.to(type_).contiguous(format_);
  const at::Tensor output = norm_(applied(conv1_, input), {}, ops::Relu::kApplied);
  return pools_ ? at::max_pool2d(output, 3, 2, 1) : output;
}

ResnetBlockModuleImpl::ResnetBlockModuleImpl(const BlockShape& shape, const ResnetNorm& norm,
                                             at::MemoryFormat format)
    : format_(format) {
  const auto add = [&](std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
    const std::string number = std::to_string(convolutions_.size() + 1);
    convolutions_.push_back(register_module("conv" + number, convolution(in, out, kernel, stride)));
    norms_.push_back(register_norm(*this, "bn" + number, out, norm));
  };
  if (shape.bottleneck) {
    add(shape.in, shape.width, 1, 1);
    add(shape.width, shape.width, 3, shape.stride);
    add(shape.width, shape.out, 1, 1);
  } else {
    add(shape.in, shape.width, 3, shape.stride);
    add(shape.width, shape.out, 3, 1);
  }
  if (shape.stride == 1 && shape.in == shape.out) return;
  // Named as torchvision names a sequence of two.
  auto shortcut = register_module("downsample", std::make_shared<torch::nn::Module>("downsample"));
  projection_ = shortcut->register_module("0", convolution(shape.in, shape.out, 1, shape.stride));
  projection_norm_ = register_norm(*shortcut, "1", shape.out, norm);
}

at::Tensor ResnetBlockModuleImpl::forward(const at::Tensor& given) {
  const at::Tensor input = given.contiguous(format_);  // it may have crossed ranks
  const at::Tensor shortcut = projection_.is_empty() ? input
                                                     : projection_norm_(applied(projection_, input),
                                                                        {}, ops::Relu::kAbsent);
  at::Tensor output = input;
  for (std::size_t i = 0; i < convolutions_.size(); ++i) {
    const bool is_last = i + 1 == convolutions_.size();
    output = norms_[i](applied(convolutions_[i], output), is_last ? shortcut : at::Tensor(),
                       ops::Relu::kApplied);
  }
  return output;
}

ResnetHeadModuleImpl::ResnetHeadModuleImpl(std::int64_t channels, std::int64_t classes)
    : fc_(channels, classes) {
  register_module("fc", fc_);
}

at::Tensor ResnetHeadModuleImpl::forward(const at::Tensor& input) {
  return fc_->forward(input.mean({2, 3}));
}

}  // namespace troika
