#include <troika/base/vectorize.h>
#include <troika/data/images/resample.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace troika {
namespace {

// A pixel of colour while it is added up: four numbers that one instruction multiplies.
using Color4 = float __attribute__((vector_size(16)));

// The weights along one side: output i is the sum of weights[i * taps + k] * input[first[i] + k].
class Filter {
 public:
  // Makes those of `count` outputs over [begin, begin + length) of `inputs` pixels.
  Filter(double begin, double length, std::int64_t inputs, std::int64_t count) {
    const double step = length / static_cast<double>(count);
    const double reach = std::max(1.0, step);  // half of the triangle's width
    taps_ = std::min(inputs, static_cast<std::int64_t>(std::ceil(2 * reach)) + 1);
    for (std::int64_t i = 0; i < count; ++i) {
      add(begin + (static_cast<double>(i) + 0.5) * step, reach, inputs);
    }
  }

  [[nodiscard]] std::int64_t taps() const { return taps_; }
  [[nodiscard]] std::int64_t first(std::int64_t i) const {
    return first_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const float* weights(std::int64_t i) const {
    return &weights_[static_cast<std::size_t>(i * taps_)];
  }

 private:
  void add(double center, double reach, std::int64_t inputs) {
    const auto start = static_cast<std::int64_t>(std::floor(center - reach));
    const std::int64_t first = std::clamp<std::int64_t>(start, 0, inputs - taps_);
    const auto weight = [&](std::int64_t k) {
      const double middle = static_cast<double>(first + k) + 0.5;
      return std::max(0.0, 1 - std::abs(middle - center) / reach);
    };
    double sum = 0;
    for (std::int64_t k = 0; k < taps_; ++k) sum += weight(k);
    for (std::int64_t k = 0; k < taps_; ++k) {
      weights_.push_back(static_cast<float>(weight(k) / sum));
    }
    first_.push_back(first);
  }

  std::int64_t taps_ = 0;
  std::vector<std::int64_t> first_;
  std::vector<float> weights_;
};

// Adds up the input rows of output row `y`, from the column `from` on, into `out`.
void sum_rows(const PixelView& image, const Filter& filter, std::int64_t y, std::int64_t from,
              std::span<float> out) {
  std::ranges::fill(out, 0.0F);
  for (std::int64_t k = 0; k < filter.taps(); ++k) {
    const float weight = filter.weights(y)[k];
    if (weight == 0) continue;
    const std::uint8_t* in =
        image.data + ((filter.first(y) + k) * image.width + from) * image.bytes;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * static_cast<float>(in[i]);
  }
}

// Adds up the pixels of one output row. `row` begins at the column `from`; output x goes to
// out[x * step].
void sum_columns(const float* row, const Filter& filter, std::int64_t from, std::int64_t width,
                 const PixelScale& scale, std::int64_t step, float* out) {
  for (std::int64_t x = 0; x < width; ++x) {
    const float* in = row + filter.first(x) - from;
    float sum = 0;
    for (std::int64_t k = 0; k < filter.taps(); ++k) sum += filter.weights(x)[k] * in[k];
    out[x * step] = sum * scale.scale[0] + scale.shift[0];
  }
}

// Does the same for colour; planes are `plane` numbers apart.
void sum_color_columns(const float* row, const Filter& filter, std::int64_t from,
                       std::int64_t width, const PixelScale& scale, std::int64_t step, float* out,
                       std::int64_t plane) {
  const Color4 factor{scale.scale[0], scale.scale[1], scale.scale[2], 0};
  const Color4 shift{scale.shift[0], scale.shift[1], scale.shift[2], 0};
  for (std::int64_t x = 0; x < width; ++x) {
    const float* in = row + 4 * (filter.first(x) - from);
    Color4 sum{};
    for (std::int64_t k = 0; k < filter.taps(); ++k) {
      Color4 pixel;
      std::memcpy(&pixel, in + 4 * k, sizeof(pixel));
      sum += filter.weights(x)[k] * pixel;
    }
    sum = sum * factor + shift;
    for (std::int64_t channel = 0; channel < 3; ++channel)
      out[channel * plane + x * step] = sum[channel];
  }
}

}  // namespace

void resample(const PixelView& image, const ImageWindow& window, std::int64_t height,
              std::int64_t width, Mirror mirror, const PixelScale& scale, float* out) {
  const Filter rows(window.y, window.height, image.height, height);
  const Filter columns(window.x, window.width, image.width, width);
  const std::int64_t from = columns.first(0);
  const std::int64_t to = columns.first(width - 1) + columns.taps();
  std::vector<float> row(static_cast<std::size_t>((to - from) * image.bytes));
  const std::int64_t step = mirror == Mirror::kYes ? -1 : 1;
  vectorized([&] {
    for (std::int64_t y = 0; y < height; ++y) {
      sum_rows(image, rows, y, from, row);
      float* const first = out + y * width + (step < 0 ? width - 1 : 0);
      if (image.bytes == 1) {
        sum_columns(row.data(), columns, from, width, scale, step, first);
      } else {
        sum_color_columns(row.data(), columns, from, width, scale, step, first, height * width);
      }
    }
  });
}

}  // namespace troika
