// The keys of [model] with kind = "resnet".
#pragma once

#include <troika/models/kind.h>

#include <cstdint>
#include <vector>

namespace troika {

enum class ResnetBlock { kBasic, kBottleneck };
// The layers before the blocks: a 3x3 convolution for small images, or a 7x7 one with stride 2 and
// a max-pool. He et al. 2015 use them for CIFAR and for ImageNet.
enum class ResnetStem { k32, k224 };
enum class BatchNormKind { kLocal, kSynchronised };

template <>
std::span<const std::string_view> names_of<ResnetBlock>();
template <>
std::span<const std::string_view> names_of<ResnetStem>();
template <>
std::span<const std::string_view> names_of<BatchNormKind>();

struct ResnetOptions {
  std::int64_t classes = 10;
  std::vector<std::int64_t> blocks = {2, 2, 2, 2};  // of each group, whose width doubles
  ResnetBlock block = ResnetBlock::kBasic;
  std::int64_t width = 64;
  ResnetStem stem = ResnetStem::k32;
  std::int64_t image_size = 32;  // default: what the stem is named for
  std::int64_t channels = 3;
  BatchNormKind norm = BatchNormKind::kLocal;
  double norm_eps = 1e-5;
  double norm_momentum = 0.1;
  bool channels_last = true;

  bool operator==(const ResnetOptions&) const = default;
};

[[nodiscard]] const ModelKind& resnet_kind();

}  // namespace troika
