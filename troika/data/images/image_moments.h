// Means and deviations of the channels of images.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// Sums over the pixels of a channel.
struct ChannelSums {
  double values = 0, squares = 0;

  void add(const ChannelSums& other) {
    values += other.values;
    squares += other.squares;
  }
};

// Returns the sums of each of `channels` planes.
[[nodiscard]] std::vector<ChannelSums> sums_of(std::span<const float> planes,
                                               std::int64_t channels);

struct ChannelMoments {
  std::vector<double> mean, std;  // one a channel
};

// Returns the moments of images from the sums of each, which are added in their order. A channel
// without deviation is left as wide as it is.
[[nodiscard]] ChannelMoments moments_of(std::span<const std::vector<ChannelSums>> images,
                                        std::int64_t pixels_of_image);

// Returns which of `count` items a sample of at most `most` takes: evenly, the first among them.
[[nodiscard]] std::vector<std::int64_t> even_sample(std::int64_t count, std::int64_t most);

// The most images that moments are computed from.
inline constexpr std::int64_t kMostMeasuredImages = 1024;

}  // namespace troika
