#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/base/random.h>
#include <troika/ops/dropout.h>

#include <cmath>

namespace troika::ops {
namespace {

// Four elements share a Philox block: counter (step, sample, element / 4), one word each.
template <typename Scalar>
void drop_sample(const Scalar* in, Scalar* out, std::int64_t count, std::uint64_t key,
                 std::uint64_t high, std::uint64_t threshold, double keep_scale) {
  using Real = at::opmath_type<Scalar>;
  const auto scale = static_cast<Real>(keep_scale);
  for (std::int64_t i = 0; i < count; i += 4) {
    const auto words = philox(key, high, static_cast<std::uint64_t>(i / 4));
    for (std::int64_t lane = 0; lane < std::min<std::int64_t>(4, count - i); ++lane) {
      const bool keep = words[static_cast<std::size_t>(lane)] >= threshold;
      out[i + lane] =
          keep ? static_cast<Scalar>(static_cast<Real>(in[i + lane]) * scale) : Scalar(0);
    }
  }
}

}  // namespace

at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, double probability,
                   const DropoutKey& key) {
  if (probability == 0 || input.numel() == 0) return input;
  const at::Tensor output = at::empty_like(input);
  const std::int64_t samples = sample_ids.numel(), count = input.numel() / samples;
  const auto threshold = static_cast<std::uint64_t>(std::llround(probability * 0x1.0p32));
  const std::uint64_t stream = mix_bits(key.stream ^ static_cast<std::uint64_t>(key.step));
  const auto* ids = sample_ids.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "dropout", [&] {
    const auto* in = input.const_data_ptr<scalar_t>();
    auto* out = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, samples, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample) {
        drop_sample(in + sample * count, out + sample * count, count, stream,
                    static_cast<std::uint64_t>(ids[sample]), threshold, 1 / (1 - probability));
      }
    });
  });
  return output;
}

}  // namespace troika::ops
