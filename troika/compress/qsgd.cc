// Compression to few levels by unbiased random rounding (QSGD, Alistarh et al. 2017).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/base/random.h>
#include <troika/compress/blocks.h>
#include <troika/compress/compressors.h>
#include <troika/compress/gather_compressor.h>
#include <troika/compress/kind.h>

#include <algorithm>
#include <string>

namespace troika {
namespace {

constexpr std::int64_t kBlock = 512;  // as in the paper's section 4
constexpr std::int64_t kGrain = 1 << 13;

// Uniform numbers in [0, 1) of 24 bits, four from each block of random words.
at::Tensor uniform_numbers(std::uint64_t key, std::int64_t round, std::int64_t count) {
  const at::Tensor numbers = at::empty({count}, at::kFloat);
  auto* const out = numbers.mutable_data_ptr<float>();
  at::parallel_for(0, (count + 3) / 4, kGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto words =
          philox(key, static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(i));
      for (std::int64_t k = 0; k < std::min<std::int64_t>(4, count - 4 * i); ++k) {
        out[4 * i + k] = static_cast<float>(words[static_cast<std::size_t>(k)] >> 8U) * 0x1p-24F;
      }
    }
  });
  return numbers;
}

class Qsgd final : public Codec {
 public:
  Qsgd(std::int64_t levels, std::uint64_t seed)
      : levels_(static_cast<double>(levels)), seed_(seed) {}

  [[nodiscard]] std::string describe() const override {
    return "qsgd (levels " + std::to_string(static_cast<int>(levels_)) + ", seed " +
           std::to_string(seed_) + ")";
  }
  [[nodiscard]] bool is_biased() const override { return false; }
  [[nodiscard]] std::int64_t payload_bytes(std::int64_t elements, at::ScalarType) const override {
    return payload_.bytes(elements);
  }
  void encode(const at::Tensor& input, const at::Tensor& payload,
              const DrawKey& key) const override {
    const std::uint64_t stream =
        detail::draw_key(seed_, "qsgd on rank " + std::to_string(key.sender), key.part);
    const at::Tensor draws = uniform_numbers(stream, key.round, input.numel()).to(input.options());
    payload_.encode(
        input, payload,
        [&](const at::Tensor& rows, std::int64_t begin, at::Tensor& factors, at::Tensor& codes) {
          factors.copy_(at::linalg_vector_norm(rows, 2, 1, /*keepdim=*/true));
          at::Tensor units = rows.abs() / detail::divisors(factors, rows.scalar_type()) * levels_;
          units.add_(draws.narrow(0, begin, rows.numel()).view(rows.sizes())).floor_();
          codes.copy_(units.nan_to_num_(0).clamp_(0, levels_).mul_(rows.sign().nan_to_num_(0)));
        });
  }
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                   const DrawKey&) const override {
    payload_.add_decoded(payload, sum, 1 / levels_);
  }

 private:
  detail::BlockPayload payload_{kBlock};
  double levels_;
  std::uint64_t seed_;
};

struct QsgdOptions : CompressScope {
  std::int64_t levels = 127;

  bool operator==(const QsgdOptions&) const = default;
};

class QsgdKind final : public HookKind<QsgdOptions> {
 public:
  QsgdKind()
      : HookKind("qsgd",
                 {KeysOf<QsgdOptions>::integer<&QsgdOptions::levels>(
                     "levels", {1, 127}, "a value is rounded to a multiple of norm / levels")}) {}

  [[nodiscard]] std::int64_t copies() const override { return 1; }

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const QsgdOptions& options,
                                                      std::uint64_t seed) const override {
    return compress_by_qsgd(options.levels, seed);
  }
  [[nodiscard]] std::shared_ptr<const Codec> make_codec(const QsgdOptions& options,
                                                        std::uint64_t seed) const override {
    return qsgd_codec(options.levels, seed);
  }
};

}  // namespace

std::shared_ptr<const Codec> qsgd_codec(std::int64_t levels, std::uint64_t seed) {
  return std::make_shared<Qsgd>(levels, seed);
}

std::shared_ptr<BucketHook> compress_by_qsgd(std::int64_t levels, std::uint64_t seed) {
  return std::make_shared<detail::GatherCompressor>(qsgd_codec(levels, seed));
}

const CompressKind& qsgd_kind() {
  static const QsgdKind kKind;
  return kKind;
}

}  // namespace troika
