// Compression to int8: blocks of values as whole numbers, and a factor for each block.
#include <ATen/ATen.h>
#include <troika/compress/blocks.h>
#include <troika/compress/compressors.h>
#include <troika/compress/gather_compressor.h>
#include <troika/compress/kind.h>

#include <string>

namespace troika {
namespace {

constexpr double kLargestCode = 127;

class Int8 final : public Codec {
 public:
  explicit Int8(std::int64_t block) : block_(block), payload_(block) {}

  [[nodiscard]] std::string describe() const override {
    return "int8 (block " + std::to_string(block_) + ")";
  }
  [[nodiscard]] std::int64_t payload_bytes(std::int64_t elements, at::ScalarType) const override {
    return payload_.bytes(elements);
  }
  void encode(const at::Tensor& input, const at::Tensor& payload, const DrawKey&) const override {
    payload_.encode(
        input, payload,
        [](const at::Tensor& rows, std::int64_t, at::Tensor& factors, at::Tensor& codes) {
          factors.copy_(rows.abs().amax(1, /*keepdim=*/true).div_(kLargestCode));
          at::Tensor units = rows / detail::divisors(factors, rows.scalar_type());
          codes.copy_(units.nan_to_num_(0).round_().clamp_(-kLargestCode, kLargestCode));
        });
  }
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                   const DrawKey&) const override {
    payload_.add_decoded(payload, sum, 1);
  }

 private:
  std::int64_t block_;
  detail::BlockPayload payload_;
};

struct Int8Options : CompressScope {
  std::int64_t block = 256;

  bool operator==(const Int8Options&) const = default;
};

class Int8Kind final : public HookKind<Int8Options> {
 public:
  Int8Kind()
      : HookKind("int8", {KeysOf<Int8Options>::integer<&Int8Options::block>(
                             "block", {1, 1 << 20}, "elements that share a scale")}) {}

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const Int8Options& options,
                                                      std::uint64_t) const override {
    return compress_to_int8(options.block);
  }
  [[nodiscard]] std::shared_ptr<const Codec> make_codec(const Int8Options& options,
                                                        std::uint64_t) const override {
    return int8_codec(options.block);
  }
};

}  // namespace

std::shared_ptr<const Codec> int8_codec(std::int64_t block) {
  return std::make_shared<Int8>(block);
}

std::shared_ptr<BucketHook> compress_to_int8(std::int64_t block) {
  return std::make_shared<detail::GatherCompressor>(int8_codec(block));
}

const CompressKind& int8_kind() {
  static const Int8Kind kKind;
  return kKind;
}

}  // namespace troika
