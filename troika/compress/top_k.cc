// Compression to the largest values, with error feedback.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/compress/compressors.h>
#include <troika/compress/gather_compressor.h>
#include <troika/compress/sparse_options.h>

#include <limits>
#include <string>
#include <tuple>

namespace troika {
namespace {

constexpr std::int64_t kIndexBytes = 4;

// A payload is the values, then their places as int32.
class TopK final : public Codec {
 public:
  explicit TopK(double fraction) : fraction_(fraction) {}

  [[nodiscard]] std::string describe() const override {
    return detail::describe_sparse("top_k", fraction_);
  }
  [[nodiscard]] std::int64_t payload_bytes(std::int64_t elements,
                                           at::ScalarType type) const override {
    if (elements > std::numeric_limits<std::int32_t>::max()) {
      throw UsageError("top_k of " + std::to_string(elements) + " values at once: at most 2^31 - 1",
                       "take smaller buckets, or more servers");
    }
    return detail::padded_bytes(detail::share_of(fraction_, elements) *
                                (static_cast<std::int64_t>(c10::elementSize(type)) + kIndexBytes));
  }
  // What is not a number counts as the largest, so that it is sent.
  void encode(const at::Tensor& input, const at::Tensor& payload, const DrawKey&) const override {
    const std::int64_t k = detail::share_of(fraction_, input.numel());
    const at::Tensor indices =
        std::get<1>(at::topk(input.abs(), k, 0, /*largest=*/true, /*sorted=*/false));
    values_of(payload, k, input.scalar_type()).copy_(input.index_select(0, indices));
    indices_of(payload, k, input.scalar_type()).copy_(indices);
  }
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                   const DrawKey&) const override {
    const std::int64_t k = detail::share_of(fraction_, sum.numel());
    at::Tensor(sum).index_add_(0, indices_of(payload, k, sum.scalar_type()),
                               values_of(payload, k, sum.scalar_type()));
  }

 private:
  void check_content(const at::Tensor& payload, std::int64_t elements,
                     at::ScalarType type) const override {
    const at::Tensor indices = indices_of(payload, detail::share_of(fraction_, elements), type);
    if (!((indices < 0) | (indices >= elements)).any().item<bool>()) return;
    throw DataError(
        "another process has sent top_k of more than " + std::to_string(elements) + " values",
        "do all processes run the same version of troika?");
  }

  static std::int64_t value_bytes(std::int64_t k, at::ScalarType type) {
    return k * static_cast<std::int64_t>(c10::elementSize(type));
  }
  static at::Tensor values_of(const at::Tensor& payload, std::int64_t k, at::ScalarType type) {
    return payload.narrow(0, 0, value_bytes(k, type)).view(type);
  }
  static at::Tensor indices_of(const at::Tensor& payload, std::int64_t k, at::ScalarType type) {
    return payload.narrow(0, value_bytes(k, type), k * kIndexBytes).view(at::kInt);
  }

  double fraction_;
};

class TopKKind final : public SparseKind {
 public:
  TopKKind() : SparseKind("top_k") {}

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const SparseOptions& options,
                                                      std::uint64_t) const override {
    return keep_top_k(options.fraction);
  }
  [[nodiscard]] std::shared_ptr<const Codec> make_codec(const SparseOptions& options,
                                                        std::uint64_t) const override {
    return top_k_codec(options.fraction);
  }
};

}  // namespace

std::shared_ptr<const Codec> top_k_codec(double fraction) {
  return std::make_shared<TopK>(fraction);
}

std::shared_ptr<BucketHook> keep_top_k(double fraction) {
  return std::make_shared<detail::GatherCompressor>(top_k_codec(fraction));
}

const CompressKind& top_k_kind() {
  static const TopKKind kKind;
  return kKind;
}

}  // namespace troika
