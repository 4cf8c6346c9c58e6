#include <torch/torch.h>
#include <troika/nn/convolution.h>
#include <troika/nn/image_rows.h>

#include <array>

namespace troika {
namespace {

// Chosen from shapes alone, so that every machine computes the same. Larger images fill a library's
// vectors, and their neighbourhoods would be large.
constexpr std::int64_t kMostPixels = 16;

struct Window {
  std::int64_t kernel, stride, padding;
  [[nodiscard]] std::int64_t positions(std::int64_t size) const {
    return (size + 2 * padding - kernel) / stride + 1;
  }
};

// A row for each position of the window: [positions, kernel x kernel x channels].
at::Tensor neighbourhoods(const at::Tensor& images, const Window& window) {
  at::Tensor padded = images.permute({0, 2, 3, 1});
  if (const std::int64_t p = window.padding; p > 0) {
    padded = at::constant_pad_nd(padded, {0, 0, p, p, p, p});
  }
  const std::int64_t n = padded.size(0), channels = padded.size(3), k = window.kernel;
  const std::int64_t down = padded.stride(1), right = padded.stride(2);
  return padded
      .as_strided(
          {n, window.positions(images.size(2)), window.positions(images.size(3)), k, k, channels},
          {padded.stride(0), window.stride * down, window.stride * right, down, right, 1})
      .reshape({-1, k * k * channels});
}

// [out, in, kernel, kernel] as [out, kernel x kernel x in].
at::Tensor weight_rows(const at::Tensor& weight) {
  return weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1});
}

// With stride 1, the input's gradient is the convolution of the output's with the weight turned
// around.
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& weight, const Window& window) {
  if (window.stride == 1) {
    const std::int64_t out = weight.size(0), in = weight.size(1), k = window.kernel;
    const at::Tensor turned =
        weight.view({out, in, k * k}).flip(2).permute({2, 0, 1}).reshape({k * k * out, in});
    const at::Tensor rows = neighbourhoods(gradient, {k, 1, k - 1 - window.padding});
    return detail::images_of(at::mm(rows, turned), input.size(0), input.size(2), input.size(3));
  }
  const std::array<std::int64_t, 2> stride{window.stride, window.stride},
      padding{window.padding, window.padding}, one{1, 1}, none{0, 0};
  return std::get<0>(at::convolution_backward(gradient, input, weight, at::OptionalIntArrayRef(),
                                              stride, padding, one, /*transposed=*/false, none,
                                              /*groups=*/1, {true, false, false}));
}

class ProductConvolution : public torch::autograd::Function<ProductConvolution> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, std::int64_t stride, std::int64_t padding) {
    const Window window{weight.size(2), stride, padding};
    context->save_for_backward({input, weight});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    return detail::images_of(at::mm(neighbourhoods(input, window), weight_rows(weight).t()),
                             input.size(0), window.positions(input.size(2)),
                             window.positions(input.size(3)));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const at::Tensor gradient = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    const Window window{weight.size(2), context->saved_data["stride"].toInt(),
                        context->saved_data["padding"].toInt()};
    at::Tensor of_input, of_weight;
    if (context->needs_input_grad(0)) of_input = input_gradient(gradient, input, weight, window);
    if (context->needs_input_grad(1)) {
      of_weight = at::mm(detail::pixels_of(gradient).t(), neighbourhoods(input, window))
                      .view({weight.size(0), window.kernel, window.kernel, weight.size(1)})
                      .permute({0, 3, 1, 2});
    }
    return {of_input, of_weight, at::Tensor(), at::Tensor()};
  }
};

// A padding beyond the kernel would leave the gradient's windows outside of it.
bool is_product(const at::Tensor& input, const at::Tensor& weight, const Window& window) {
  return input.is_cpu() && input.numel() > 0 && weight.size(2) == weight.size(3) &&
         window.padding < window.kernel && weight.is_contiguous() &&
         input.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         window.positions(input.size(2)) * window.positions(input.size(3)) <= kMostPixels;
}

}  // namespace

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, std::int64_t stride,
                    std::int64_t padding) {
  if (is_product(input, weight, {weight.size(2), stride, padding})) {
    return ProductConvolution::apply(input, weight, stride, padding);
  }
  return at::conv2d(input, weight, {}, stride, padding);
}

}  // namespace troika
