// Compression by rounding to bf16 or fp16.
#include <ATen/ATen.h>
#include <troika/compress/compressor.h>
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>

#include <string>

namespace troika {
namespace {

constexpr double kLargestHalf = 65504;

// Rounds finite values to finite ones. An infinite value stays so: the step is not to be applied.
void round_to(const at::Tensor& rounded, const at::Tensor& input) {
  if (rounded.scalar_type() == at::kHalf) {
    rounded.copy_(at::where(at::isinf(input), input, input.clamp(-kLargestHalf, kLargestHalf)));
  } else {
    rounded.copy_(input);
  }
}

class Rounding final : public detail::Compressor {
 public:
  explicit Rounding(at::ScalarType type) : Compressor(Feedback::kKept), type_(type) {}

 private:
  [[nodiscard]] Work send(const GradientBucket& bucket, Entry& entry,
                          const at::Tensor& input) override {
    const at::Tensor rounded = buffer(bucket, entry, 0, input.numel(), type_);
    round_to(rounded, input);
    input.sub_(rounded);
    return bucket.group->all_reduce(rounded, ReduceOp::kAverage, bucket.call);
  }
  void receive(const GradientBucket&, Entry& entry, const at::Tensor& average) override {
    average.copy_(entry.wire[0].view(type_));
  }

  at::ScalarType type_;
};

class RoundingCodec final : public Codec {
 public:
  explicit RoundingCodec(at::ScalarType type) : type_(type) {}

  [[nodiscard]] std::string describe() const override {
    return type_ == at::kHalf ? "fp16" : "bf16";
  }
  [[nodiscard]] std::int64_t payload_bytes(std::int64_t elements, at::ScalarType) const override {
    return detail::padded_bytes(elements * kBytes);
  }
  void encode(const at::Tensor& input, const at::Tensor& payload, const DrawKey&) const override {
    round_to(values_of(payload, input), input);
  }
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                   const DrawKey&) const override {
    sum.add_(values_of(payload, sum));
  }

 private:
  static constexpr std::int64_t kBytes = 2;
  [[nodiscard]] at::Tensor values_of(const at::Tensor& payload, const at::Tensor& like) const {
    return payload.narrow(0, 0, like.numel() * kBytes).view(type_);
  }

  at::ScalarType type_;
};

class RoundingKind final : public HookKind<CompressScope> {
 public:
  RoundingKind(std::string_view name, std::shared_ptr<BucketHook> (*make)(),
               std::shared_ptr<const Codec> (*make_codec)())
      : HookKind(name, {}), make_(make), make_codec_(make_codec) {}

  [[nodiscard]] bool is_elementwise() const override { return true; }

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const CompressScope&,
                                                      std::uint64_t) const override {
    return make_();
  }
  [[nodiscard]] std::shared_ptr<const Codec> make_codec(const CompressScope&,
                                                        std::uint64_t) const override {
    return make_codec_();
  }

  std::shared_ptr<BucketHook> (*make_)();
  std::shared_ptr<const Codec> (*make_codec_)();
};

}  // namespace

std::shared_ptr<BucketHook> round_to_bf16() {
  return std::make_shared<Rounding>(at::kBFloat16);
}

std::shared_ptr<BucketHook> round_to_fp16() {
  return std::make_shared<Rounding>(at::kHalf);
}

std::shared_ptr<const Codec> bf16_codec() {
  return std::make_shared<RoundingCodec>(at::kBFloat16);
}

std::shared_ptr<const Codec> fp16_codec() {
  return std::make_shared<RoundingCodec>(at::kHalf);
}

const CompressKind& bf16_kind() {
  static const RoundingKind kKind("bf16", round_to_bf16, bf16_codec);
  return kKind;
}

const CompressKind& fp16_kind() {
  static const RoundingKind kKind("fp16", round_to_fp16, fp16_codec);
  return kKind;
}

}  // namespace troika
