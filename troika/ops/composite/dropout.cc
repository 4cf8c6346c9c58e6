// Dropout with the same random words as the host's kernel: Philox-4x32-10 (base/random.h) in whole
// numbers of 64 bits, of which ATen's wrap around as unsigned ones do.
#include <ATen/ATen.h>
#include <troika/ops/kernels.h>

#include <array>

namespace troika::ops::composite {
namespace {

constexpr std::int64_t kWordBits = 0xFFFFFFFF;

at::Tensor low_word(const at::Tensor& bits) {
  return bits.bitwise_and(kWordBits);
}

at::Tensor high_word(const at::Tensor& bits) {
  return bits.__rshift__(32).bitwise_and(kWordBits);  // the shift brings the sign along
}

using Words = std::array<at::Tensor, 4>;

Words philox_words(std::uint64_t key, const at::Tensor& counter_high,
                   const at::Tensor& counter_low) {
  constexpr std::int64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  Words c = {low_word(counter_low), high_word(counter_low), low_word(counter_high),
             high_word(counter_high)};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor p0 = c[0] * kMultiplier0, p1 = c[2] * kMultiplier1;
    c = {high_word(p1).bitwise_xor(c[1]).bitwise_xor(static_cast<std::int64_t>(k0)), low_word(p1),
         high_word(p0).bitwise_xor(c[3]).bitwise_xor(static_cast<std::int64_t>(k1)), low_word(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

}  // namespace

at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, std::int64_t first,
                   std::int64_t per_sample, double probability, std::int64_t key) {
  const at::Tensor places = at::arange(first, first + input.numel(), sample_ids.options());
  const at::Tensor samples = sample_ids.index_select(0, places.floor_divide(per_sample));
  const at::Tensor element = places.remainder(per_sample);
  const Words words =
      philox_words(static_cast<std::uint64_t>(key), samples, element.floor_divide(4));
  const at::Tensor lane = element.remainder(4);
  at::Tensor word = words[3];
  for (std::int64_t i = 0; i < 3; ++i) {
    word = at::where(lane.eq(i), words[static_cast<std::size_t>(i)], word);
  }
  const at::Tensor keep =
      word.ge(static_cast<std::int64_t>(dropout_threshold(probability))).view(input.sizes());
  return at::where(keep, input * (1 / (1 - probability)), 0).to(input.scalar_type());
}

}  // namespace troika::ops::composite
