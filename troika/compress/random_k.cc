// Compression to values at random positions, with error feedback.
#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/compress/compressor.h>
#include <troika/compress/compressors.h>
#include <troika/compress/sparse_options.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Returns `k` different numbers below `count`, ascending: the begin of a shuffle (Fisher and
// Yates).
at::Tensor draw_indices(const RandomStream& random, std::int64_t k, std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  for (std::int64_t i = 0; i < k; ++i) {
    const auto chosen = static_cast<std::int64_t>(
        random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(count - i)));
    std::swap(indices[static_cast<std::size_t>(i)], indices[static_cast<std::size_t>(i + chosen)]);
  }
  indices.resize(static_cast<std::size_t>(k));
  std::ranges::sort(indices);
  return at::tensor(indices, at::kLong);
}

// Takes the values at some places. What is not finite is told in every step, wherever it is: 0 is
// added if all is, else NaN.
void take_values(const at::Tensor& input, const at::Tensor& indices, const at::Tensor& values) {
  values.copy_(input.index_select(0, indices));
  values.narrow(0, 0, 1).add_(input.mul(0).sum());
}

// All ranks draw the same places, so that an all-reduce adds values up.
class RandomK final : public detail::Compressor {
 public:
  RandomK(double fraction, std::uint64_t seed)
      : Compressor(Feedback::kKept), fraction_(fraction), seed_(seed) {}

 private:
  [[nodiscard]] Work send(const GradientBucket& bucket, Entry& entry,
                          const at::Tensor& input) override {
    const RandomStream random(detail::draw_key(seed_, "random_k", bucket.index),
                              static_cast<std::uint64_t>(entry.next.rounds));
    const std::int64_t k = detail::share_of(fraction_, input.numel());
    entry.indices = draw_indices(random, k, input.numel()).to(input.device());
    const at::Tensor values = buffer(bucket, entry, 0, k, input.scalar_type());
    take_values(input, entry.indices, values);
    at::Tensor(input).index_fill_(0, entry.indices, 0);
    return bucket.group->all_reduce(values, ReduceOp::kAverage, bucket.call);
  }
  void receive(const GradientBucket&, Entry& entry, const at::Tensor& average) override {
    average.zero_();
    at::Tensor(average).index_copy_(0, entry.indices, entry.wire[0].view(average.scalar_type()));
  }

  double fraction_;
  std::uint64_t seed_;
};

// A payload is the values: the receiver draws the places, too.
class RandomKCodec final : public Codec {
 public:
  RandomKCodec(double fraction, std::uint64_t seed) : fraction_(fraction), seed_(seed) {}

  [[nodiscard]] std::string describe() const override {
    return detail::describe_sparse("random_k", fraction_) + " of seed " + std::to_string(seed_);
  }
  [[nodiscard]] std::int64_t payload_bytes(std::int64_t elements,
                                           at::ScalarType type) const override {
    return detail::padded_bytes(detail::share_of(fraction_, elements) *
                                static_cast<std::int64_t>(c10::elementSize(type)));
  }
  void encode(const at::Tensor& input, const at::Tensor& payload,
              const DrawKey& key) const override {
    const at::Tensor indices = indices_of(input, key);
    take_values(input, indices, values_of(payload, indices, input));
  }
  void add_decoded(const at::Tensor& payload, const at::Tensor& sum,
                   const DrawKey& key) const override {
    const at::Tensor indices = indices_of(sum, key);
    at::Tensor(sum).index_add_(0, indices, values_of(payload, indices, sum));
  }

 private:
  [[nodiscard]] at::Tensor indices_of(const at::Tensor& like, const DrawKey& key) const {
    const std::uint64_t stream =
        detail::draw_key(seed_, "random_k of sender " + std::to_string(key.sender), key.part);
    const RandomStream random(stream, static_cast<std::uint64_t>(key.round));
    return draw_indices(random, detail::share_of(fraction_, like.numel()), like.numel())
        .to(like.device());
  }
  static at::Tensor values_of(const at::Tensor& payload, const at::Tensor& indices,
                              const at::Tensor& like) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(like.scalar_type()));
    return payload.narrow(0, 0, indices.numel() * size).view(like.scalar_type());
  }

  double fraction_;
  std::uint64_t seed_;
};

class RandomKKind final : public SparseKind {
 public:
  RandomKKind() : SparseKind("random_k") {}

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const SparseOptions& options,
                                                      std::uint64_t seed) const override {
    return keep_random_k(options.fraction, seed);
  }
  [[nodiscard]] std::shared_ptr<const Codec> make_codec(const SparseOptions& options,
                                                        std::uint64_t seed) const override {
    return random_k_codec(options.fraction, seed);
  }
};

}  // namespace

std::shared_ptr<const Codec> random_k_codec(double fraction, std::uint64_t seed) {
  return std::make_shared<RandomKCodec>(fraction, seed);
}

std::shared_ptr<BucketHook> keep_random_k(double fraction, std::uint64_t seed) {
  return std::make_shared<RandomK>(fraction, seed);
}

const CompressKind& random_k_kind() {
  static const RandomKKind kKind;
  return kKind;
}

}  // namespace troika
