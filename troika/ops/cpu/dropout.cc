// Dropout on the host: a mask is a function of seed, step, sample and element alone.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <troika/base/random.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>

namespace troika::ops::cpu {
namespace {

// Elements [begin, end) of a sample.
struct Span {
  std::int64_t begin, end;
};

// Four elements share a Philox block: counter (step, sample, element / 4), one word each. `in` and
// `out` start with the span's first element.
template <typename Scalar>
void drop_sample(const Scalar* in, Scalar* out, Span span, std::uint64_t key, std::uint64_t sample,
                 std::uint64_t threshold, double keep_scale) {
  using Real = at::opmath_type<Scalar>;
  const auto scale = static_cast<Real>(keep_scale);
  for (std::int64_t block = span.begin / 4; block * 4 < span.end; ++block) {
    const auto words = philox(key, sample, static_cast<std::uint64_t>(block));
    const std::int64_t first = std::max(span.begin, block * 4);
    const std::int64_t last = std::min(span.end, block * 4 + 4);
    for (std::int64_t element = first; element < last; ++element) {
      const bool keep = words[static_cast<std::size_t>(element % 4)] >= threshold;
      const std::int64_t i = element - span.begin;
      out[i] = keep ? static_cast<Scalar>(static_cast<Real>(in[i]) * scale) : Scalar(0);
    }
  }
}

}  // namespace

at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, std::int64_t first,
                   std::int64_t per_sample, double probability, std::int64_t key) {
  const at::Tensor from = in_rows(input), output = at::empty_like(from);
  if (input.is_meta()) return output;  // a dry run: shapes alone
  const std::int64_t last = first + input.numel();
  const std::uint64_t threshold = dropout_threshold(probability);
  const at::Tensor samples = in_rows(sample_ids);
  const auto* ids = samples.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, input.scalar_type(), "dropout", [&] {
    const auto* in = from.const_data_ptr<scalar_t>();
    auto* out = output.mutable_data_ptr<scalar_t>();
    const auto drop_samples = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample) {
        const std::int64_t start = std::max(first, sample * per_sample);
        const std::int64_t stop = std::min(last, (sample + 1) * per_sample);
        drop_sample(in + start - first, out + start - first,
                    {start - sample * per_sample, stop - sample * per_sample},
                    static_cast<std::uint64_t>(key), static_cast<std::uint64_t>(ids[sample]),
                    threshold, 1 / (1 - probability));
      }
    };
    at::parallel_for(first / per_sample, (last - 1) / per_sample + 1, 1, drop_samples);
  });
  return output;
}

}  // namespace troika::ops::cpu
