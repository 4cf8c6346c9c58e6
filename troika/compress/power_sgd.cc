// Compression to low-rank factors of matrices (PowerSGD, Vogels et al. 2019), with error feedback.
#include <ATen/ATen.h>
#include <troika/base/random.h>
#include <troika/compress/compressor.h>
#include <troika/compress/compressors.h>
#include <troika/compress/kind.h>

#include <algorithm>
#include <tuple>

namespace troika {
namespace {

// A part as a matrix, [rows, columns], and the rank of its factors; 0 where it is sent whole.
struct Matrix {
  std::int64_t rows = 1, columns = 1, rank = 0;
};

Matrix matrix_of(const BucketPart& part, const PowerSgd& options) {
  Matrix matrix;
  if (part.shape.size() < 2 || part.count() == 0)
    return {.rows = part.count(), .columns = 1, .rank = 0};
  matrix.rows = part.shape.front();
  matrix.columns = part.count() / matrix.rows;
  matrix.rank = std::min({options.rank, matrix.rows, matrix.columns});
  const bool is_smaller =
      matrix.rank * (matrix.rows + matrix.columns) < matrix.rows * matrix.columns;
  if (!is_smaller && options.small == PowerSgd::Small::kWhole) matrix.rank = 0;
  return matrix;
}

// One power iteration, with the last right factor to start from:
//
//   P = mean(M Q), orthonormal columns by QR;  Q = mean(M^T P);  the mean of M is about P Q^T
//
// and the error of a rank is M - P (M^T P)^T.
class PowerIteration final : public detail::Compressor {
 public:
  PowerIteration(PowerSgd options, std::uint64_t seed)
      : Compressor(Feedback::kKept), options_(options), seed_(seed) {}

 private:
  void prepare(const GradientBucket& bucket, Entry& entry) const override {
    const at::TensorOptions type = bucket.gradients.options().dtype(type_of(bucket));
    for (std::size_t i = 0; i < entry.parts.size(); ++i) {
      const Matrix matrix = matrix_of(entry.parts[i], options_);
      at::Tensor factor;
      if (matrix.rank > 0) factor = first_factor(bucket.index, i, matrix).to(type);
      entry.now.factors.push_back(factor);
      entry.next.factors.push_back(factor.defined() ? factor.clone() : factor);
    }
  }

  [[nodiscard]] at::Tensor first_factor(int bucket, std::size_t part, const Matrix& matrix) const {
    const RandomStream random(detail::draw_key(seed_, "power_sgd", bucket), part);
    at::Tensor factor = at::empty({matrix.columns, matrix.rank}, at::kDouble);
    auto* const values = factor.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < factor.numel(); ++i) {
      values[i] = random.normal(static_cast<std::uint64_t>(i));
    }
    return factor;
  }

  // What each part puts into a buffer: P or the part itself into the first, Q into the second.
  using Shape = std::vector<std::int64_t> (*)(const Matrix& matrix);
  static std::vector<std::int64_t> left_shape(const Matrix& matrix) {
    return {matrix.rows, matrix.rank > 0 ? matrix.rank : matrix.columns};
  }
  static std::vector<std::int64_t> right_shape(const Matrix& matrix) {
    return {matrix.columns, matrix.rank};
  }

  // Returns the places in such a buffer, by part.
  [[nodiscard]] std::vector<at::Tensor> buffers_in(const GradientBucket& bucket, Entry& entry,
                                                   std::size_t which, Shape shape_of) const {
    std::int64_t elements = 0;
    for (const BucketPart& part : entry.parts) {
      elements += c10::multiply_integers(shape_of(matrix_of(part, options_)));
    }
    const at::Tensor flat = buffer(bucket, entry, which, elements, type_of(bucket));
    std::vector<at::Tensor> buffers;
    std::int64_t begin = 0;
    for (const BucketPart& part : entry.parts) {
      const std::vector<std::int64_t> shape = shape_of(matrix_of(part, options_));
      const std::int64_t count = c10::multiply_integers(shape);
      buffers.push_back(flat.narrow(0, begin, count).view(shape));
      begin += count;
    }
    return buffers;
  }

  [[nodiscard]] at::Tensor matrix_in(const Entry& entry, std::size_t part,
                                     const at::Tensor& flat) const {
    const Matrix matrix = matrix_of(entry.parts[part], options_);
    return flat.narrow(0, entry.parts[part].begin, entry.parts[part].count())
        .view({matrix.rows, matrix.columns});
  }

  [[nodiscard]] Work send(const GradientBucket& bucket, Entry& entry,
                          const at::Tensor& input) override {
    std::vector<at::Tensor> left = buffers_in(bucket, entry, 0, left_shape);
    for (std::size_t i = 0; i < left.size(); ++i) {
      at::Tensor own = matrix_in(entry, i, input);
      const at::Tensor& factor = entry.now.factors[i];
      if (factor.defined()) {
        at::mm_out(left[i], own, factor);
      } else {
        left[i].copy_(own);
        own.zero_();
      }
    }
    return bucket.group->all_reduce(flat_of(entry, 0, bucket), ReduceOp::kAverage, bucket.call);
  }

  void receive(const GradientBucket& bucket, Entry& entry, const at::Tensor& average) override {
    std::vector<at::Tensor> left = buffers_in(bucket, entry, 0, left_shape),
                            right = buffers_in(bucket, entry, 1, right_shape);
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (!entry.next.factors[i].defined()) continue;
      left[i] = std::get<0>(at::linalg_qr(left[i]));
      at::Tensor own = matrix_in(entry, i, entry.next.error);
      at::mm_out(right[i], own.t(), left[i]);
      own.sub_(left[i].mm(right[i].t()));
    }
    if (const at::Tensor flat = flat_of(entry, 1, bucket); flat.numel() > 0) {
      bucket.group->all_reduce(flat, ReduceOp::kAverage, bucket.call).wait();
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      at::Tensor mean = matrix_in(entry, i, average);
      at::Tensor& factor = entry.next.factors[i];
      if (factor.defined()) {
        factor.copy_(right[i]);
        at::mm_out(mean, left[i], factor.t());
      } else {
        mean.copy_(left[i]);
      }
    }
  }

  static at::Tensor flat_of(const Entry& entry, std::size_t which, const GradientBucket& bucket) {
    return entry.wire[which].view(type_of(bucket));
  }

  PowerSgd options_;
  std::uint64_t seed_;
};

struct PowerSgdOptions : CompressScope {
  std::int64_t rank = 4;

  bool operator==(const PowerSgdOptions&) const = default;
};

class PowerSgdKind final : public HookKind<PowerSgdOptions> {
 public:
  PowerSgdKind()
      : HookKind("power_sgd", {KeysOf<PowerSgdOptions>::integer<&PowerSgdOptions::rank>(
                                  "rank", {1, 10'000}, "of the two factors of a matrix")}) {}

 private:
  [[nodiscard]] std::shared_ptr<BucketHook> make_hook(const PowerSgdOptions& options,
                                                      std::uint64_t seed) const override {
    return compress_by_power_sgd({.rank = options.rank}, seed);
  }
};

}  // namespace

std::shared_ptr<BucketHook> compress_by_power_sgd(PowerSgd options, std::uint64_t seed) {
  return std::make_shared<PowerIteration>(options, seed);
}

const CompressKind& power_sgd_kind() {
  static const PowerSgdKind kKind;
  return kKind;
}

}  // namespace troika
