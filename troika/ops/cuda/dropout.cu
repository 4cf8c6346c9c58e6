// Dropout with the random words of base/random.h (Philox-4x32-10, Salmon et al. 2011), so that a
// mask has the same bits on every device:
//
//   y = word < threshold ? 0 : x / (1 - p)
//   word = philox(key, sample id, element / 4)[element % 4]
//
// A thread has the four elements of a sample that share a block of words.
#include <troika/ops/cuda/common.cuh>

namespace troika::ops::cuda {
namespace {

struct Words {
  std::uint32_t word[4];
};

__device__ Words philox(std::uint64_t key, std::uint64_t high, std::uint64_t low) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  Words c{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
           static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(kMultiplier0, c.word[0]);
    const std::uint32_t high1 = __umulhi(kMultiplier1, c.word[2]);
    c = {{high1 ^ c.word[1] ^ k0, kMultiplier1 * c.word[2], high0 ^ c.word[3] ^ k1,
          kMultiplier0 * c.word[0]}};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

template <class T>
__global__ void drop(const T* input, T* output, Dropout call) {
  using Real = Wide<T>;
  const std::int64_t blocks = (call.per_sample + 3) / 4;  // of words, in a sample
  const std::int64_t first_sample = call.first / call.per_sample;
  const std::int64_t end = call.first + call.count;
  const std::int64_t samples = (end - 1) / call.per_sample + 1 - first_sample;
  const auto scale = static_cast<Real>(call.keep_scale);
  for (std::int64_t i = first_index(); i < samples * blocks; i += index_step()) {
    const std::int64_t sample = first_sample + i / blocks, block = i % blocks;
    const auto id = static_cast<std::uint64_t>(call.sample_ids[sample]);
    const Words words = philox(call.key, id, static_cast<std::uint64_t>(block));
    for (int lane = 0; lane < 4; ++lane) {
      const std::int64_t element = block * 4 + lane;
      const std::int64_t place = sample * call.per_sample + element;
      if (element >= call.per_sample || place < call.first || place >= end) continue;
      const std::int64_t at = place - call.first;
      const bool keep = words.word[lane] >= call.threshold;
      output[at] = keep ? static_cast<T>(static_cast<Real>(input[at]) * scale) : static_cast<T>(0);
    }
  }
}

}  // namespace

void launch(const Dropout& call, Scalar scalar, cudaStream_t stream) {
  if (call.count == 0) return;
  const unsigned blocks = blocks_for((call.count + 3) / 4 + call.count / call.per_sample + 2);
  with_type(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    start(drop<T>, blocks, stream, static_cast<const T*>(call.input), static_cast<T*>(call.output),
          call);
  });
}

}  // namespace troika::ops::cuda
