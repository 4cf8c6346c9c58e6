// Attention on the host, by LibTorch but for the gradients of bf16. LibTorch makes those of many
// small products, each of which costs it more to prepare than to compute. Here a head's queries are
// taken in blocks, whose products are those of matrix tiles, from bf16 to fp32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <troika/ops/cpu/bf16_product.h>
#include <troika/ops/cpu/exponential.h>
#include <troika/ops/cpu/widest_vectors.h>
#include <troika/ops/kernels.h>
#include <troika/ops/rows.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace troika::ops::cpu {
namespace {

using at::BFloat16;

constexpr std::int64_t kBlock = 128;  // queries

// A head of one sample: [length, head_dim], whose rows are `stride` elements apart.
struct Head {
  const BFloat16* data;
  std::int64_t stride;
  [[nodiscard]] const std::uint16_t* row(std::int64_t index) const {
    return reinterpret_cast<const std::uint16_t*>(data + index * stride);
  }
};

Head head_of(const at::Tensor& heads, std::int64_t sample, std::int64_t head) {
  return {heads.const_data_ptr<BFloat16>() + sample * heads.stride(0) + head * heads.stride(1),
          heads.stride(2)};
}

// [samples, heads, length, head_dim] with the elements of a row side by side.
at::Tensor with_rows(const at::Tensor& heads) {
  const bool is_addressable = heads.stride(3) == 1 || heads.size(3) == 1;
  return is_addressable && heads.stride(2) >= heads.size(3) ? heads : heads.contiguous();
}

// Buffers of one thread for a block of queries. The probabilities and slopes of a query are
// [keys], as many as the block has.
struct Buffers {
  explicit Buffers(std::int64_t length, std::int64_t dim)
      : scores(at::empty({kBlock, length}, at::kFloat)),
        products(at::empty({kBlock, length}, at::kFloat)),
        probabilities(at::empty({kBlock, length}, at::kBFloat16)),
        slopes(at::empty({kBlock, length}, at::kBFloat16)),
        of_query(at::empty({kBlock, dim}, at::kFloat)),
        of_key(at::empty({length, dim}, at::kFloat)),
        of_value(at::empty({length, dim}, at::kFloat)) {}
  at::Tensor scores, products, probabilities, slopes;
  at::Tensor of_query, of_key, of_value;  // sums
};

float* floats(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}
BFloat16* halves(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<BFloat16>();
}
const std::uint16_t* bits(const at::Tensor& tensor) {
  return reinterpret_cast<const std::uint16_t*>(tensor.const_data_ptr<BFloat16>());
}

// The probabilities p = exp(score - log_sum) of a query, and the gradient p (product - dot) of its
// scores, both rounded. Keys from `visible` on get 0.
[[gnu::always_inline]] inline void softmax_gradient(
    const float* __restrict scores, const float* __restrict products,
    const BFloat16* __restrict mask, float log_sum, float dot, float scale, std::int64_t visible,
    std::int64_t keys, BFloat16* __restrict probabilities, BFloat16* __restrict slopes) {
  for (std::int64_t key = 0; key < visible; ++key) {
    float score = scores[key] * scale;
    if (mask != nullptr) score += static_cast<float>(mask[key]);
    const float p = exponential_of_negative(std::min(score - log_sum, 0.0F));
    probabilities[key] = static_cast<BFloat16>(p);
    slopes[key] = static_cast<BFloat16>(p * (products[key] - dot) * scale);
  }
  std::fill(probabilities + visible, probabilities + keys, BFloat16(0));
  std::fill(slopes + visible, slopes + keys, BFloat16(0));
}

struct Problem {
  at::Tensor gradient, query, key, value, output, log_sum, mask;
  at::Tensor of_query, of_key, of_value;
  std::int64_t heads, length, dim;
  float scale;
};

// Gradients of one head of one sample.
class HeadGradients {
 public:
  HeadGradients(const Problem& problem, Buffers& buffers, std::int64_t sample, std::int64_t head)
      : problem_(problem),
        buffers_(buffers),
        sample_(sample),
        head_(head),
        d_(head_of(problem.gradient, sample, head)),
        q_(head_of(problem.query, sample, head)),
        k_(head_of(problem.key, sample, head)),
        v_(head_of(problem.value, sample, head)),
        o_(head_of(problem.output, sample, head)) {}

  void compute() {
    // The last queries see all keys: their products overwrite what the buffers have.
    const std::int64_t blocks = (problem_.length + kBlock - 1) / kBlock;
    for (std::int64_t block = blocks; block-- > 0;) {
      const std::int64_t first = block * kBlock, end = std::min(problem_.length, first + kBlock);
      add_block(first, end - first, problem_.mask.defined() ? problem_.length : end,
                block + 1 == blocks ? 0.0F : 1.0F);
    }
    round(problem_.of_key, buffers_.of_key, 0, problem_.length);
    round(problem_.of_value, buffers_.of_value, 0, problem_.length);
  }

 private:
  // `rows` queries from `first` on, which see at most `keys` keys.
  void add_block(std::int64_t first, std::int64_t rows, std::int64_t keys, float beta) {
    const auto m = static_cast<int>(rows), n = static_cast<int>(keys);
    const auto dim = static_cast<int>(problem_.dim);
    Bf16Product& multiply = *bf16_product();
    const auto stride = [](const Head& head) { return static_cast<int>(head.stride); };
    multiply(kRowMajor, kAsIs, kTransposed, m, n, dim, 1, q_.row(first), stride(q_), k_.row(0),
             stride(k_), 0, floats(buffers_.scores), n);
    multiply(kRowMajor, kAsIs, kTransposed, m, n, dim, 1, d_.row(first), stride(d_), v_.row(0),
             stride(v_), 0, floats(buffers_.products), n);
    vectorized_widely([&] { softmax_gradients(first, rows, keys); });
    multiply(kRowMajor, kTransposed, kAsIs, n, dim, m, 1, bits(buffers_.probabilities), n,
             d_.row(first), stride(d_), beta, floats(buffers_.of_value), dim);
    multiply(kRowMajor, kTransposed, kAsIs, n, dim, m, 1, bits(buffers_.slopes), n, q_.row(first),
             stride(q_), beta, floats(buffers_.of_key), dim);
    multiply(kRowMajor, kAsIs, kAsIs, m, dim, n, 1, bits(buffers_.slopes), n, k_.row(0), stride(k_),
             0, floats(buffers_.of_query), dim);
    round(problem_.of_query, buffers_.of_query, first, rows);
  }

  [[gnu::always_inline]] inline void softmax_gradients(std::int64_t first, std::int64_t rows,
                                                       std::int64_t keys) const {
    const std::int64_t length = problem_.length;
    const bool masked = problem_.mask.defined();
    const auto* mask =
        masked ? problem_.mask.const_data_ptr<BFloat16>() + sample_ * length * length : nullptr;
    const float* log_sums =
        problem_.log_sum.const_data_ptr<float>() + (sample_ * problem_.heads + head_) * length;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t query = first + row;
      const BFloat16* const o = o_.data + query * o_.stride;
      const BFloat16* const d = d_.data + query * d_.stride;
      float dot = 0;
      for (std::int64_t i = 0; i < problem_.dim; ++i) {
        dot += static_cast<float>(o[i]) * static_cast<float>(d[i]);
      }
      softmax_gradient(floats(buffers_.scores) + row * keys, floats(buffers_.products) + row * keys,
                       masked ? mask + query * length : nullptr, log_sums[query], dot,
                       problem_.scale, masked ? keys : query + 1, keys,
                       halves(buffers_.probabilities) + row * keys,
                       halves(buffers_.slopes) + row * keys);
    }
  }

  // Rounds sums [rows, dim] to the head's rows of `to` from `first` on.
  void round(const at::Tensor& to, const at::Tensor& sums, std::int64_t first,
             std::int64_t rows) const {
    BFloat16* const start =
        halves(to) + sample_ * to.stride(0) + head_ * to.stride(1) + first * to.stride(2);
    const float* const from = floats(sums);
    vectorized_widely([&] {
      for (std::int64_t row = 0; row < rows; ++row) {
        BFloat16* __restrict const out = start + row * to.stride(2);
        for (std::int64_t i = 0; i < problem_.dim; ++i) {
          out[i] = static_cast<BFloat16>(from[row * problem_.dim + i]);
        }
      }
    });
  }

  const Problem& problem_;
  Buffers& buffers_;
  std::int64_t sample_, head_;
  Head d_, q_, k_, v_, o_;
};

// Tokens in rows, as linear layers take them, seen as [samples, heads, length, head_dim].
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

ThreeTensors bf16_gradients(const at::Tensor& gradient, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, const at::Tensor& output,
                            const at::Tensor& log_sum) {
  const std::int64_t samples = query.size(0), heads = query.size(1), length = query.size(2);
  const std::int64_t dim = query.size(3);
  const Problem problem{with_rows(gradient),
                        with_rows(query),
                        with_rows(key),
                        with_rows(value),
                        with_rows(output),
                        in_rows(log_sum),
                        mask ? in_rows(mask->expand({samples, 1, length, length})) : at::Tensor(),
                        empty_heads(query),
                        empty_heads(key),
                        empty_heads(value),
                        heads,
                        length,
                        dim,
                        static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))};
  at::parallel_for(0, samples * heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Buffers buffers(length, dim);
    for (std::int64_t i = begin; i < end; ++i) {
      HeadGradients(problem, buffers, i / heads, i % heads).compute();
    }
  });
  return {problem.of_query, problem.of_key, problem.of_value};
}

}  // namespace

TwoTensors attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  return at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, !mask, mask);
}

ThreeTensors attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                const at::Tensor& key, const at::Tensor& value,
                                const std::optional<at::Tensor>& mask, const at::Tensor& output,
                                const at::Tensor& log_sum) {
  if (query.scalar_type() == at::kBFloat16 && !query.is_meta() && query.numel() > 0 &&
      bf16_product() != nullptr) {
    return bf16_gradients(gradient, query, key, value, mask, output, log_sum);
  }
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, log_sum, 0.0, !mask, mask);
}

}  // namespace troika::ops::cpu
