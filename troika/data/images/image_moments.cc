#include <troika/data/images/image_moments.h>

#include <algorithm>
#include <cmath>

namespace troika {

std::vector<ChannelSums> sums_of(std::span<const float> planes, std::int64_t channels) {
  std::vector<ChannelSums> sums(static_cast<std::size_t>(channels));
  const std::size_t pixels = planes.size() / sums.size();
  for (std::size_t channel = 0; channel < sums.size(); ++channel) {
    for (const float value : planes.subspan(channel * pixels, pixels)) {
      const double wide = value;
      sums[channel].add({wide, wide * wide});
    }
  }
  return sums;
}

ChannelMoments moments_of(std::span<const std::vector<ChannelSums>> images,
                          std::int64_t pixels_of_image) {
  const double pixels = static_cast<double>(pixels_of_image) * static_cast<double>(images.size());
  std::vector<ChannelSums> total(images.front().size());
  for (const std::vector<ChannelSums>& image : images) {
    for (std::size_t channel = 0; channel < total.size(); ++channel) {
      total[channel].add(image[channel]);
    }
  }
  ChannelMoments moments;
  for (const ChannelSums& sums : total) {
    const double mean = sums.values / pixels;
    const double variance = std::max(0.0, sums.squares / pixels - mean * mean);
    moments.mean.push_back(mean);
    moments.std.push_back(variance > 1e-12 ? std::sqrt(variance) : 1);
  }
  return moments;
}

std::vector<std::int64_t> even_sample(std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> sample;
  const std::int64_t taken = std::min(count, most);
  for (std::int64_t i = 0; i < taken; ++i) sample.push_back(i * count / taken);
  return sample;
}

}  // namespace troika
