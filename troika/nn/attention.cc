#include <ATen/ATen.h>
#include <troika/nn/attention.h>
#include <troika/ops/attention.h>

#include <limits>

namespace troika {
namespace {

// [samples x length, heads x head_dim] -> [samples, heads, length, head_dim], a view.
at::Tensor split_heads(const at::Tensor& tokens, const AttentionShape& shape, std::int64_t heads) {
  return tokens.view({shape.samples, shape.length, heads, shape.head_dim}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& heads, const AttentionShape& shape) {
  return heads.transpose(1, 2).contiguous().view({shape.samples * shape.length, -1});
}

// Whether all key and value heads here serve equally many neighbouring query heads.
bool even_groups(const AttentionShape& shape) {
  if (shape.reads.empty()) return true;
  if (shape.heads % shape.kv_heads != 0) return false;
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    if (shape.reads[static_cast<std::size_t>(head)] != head / group) return false;
  }
  return true;
}

// A key or value head for each query head.
at::Tensor repeat_heads(const at::Tensor& tokens, const AttentionShape& shape) {
  at::Tensor heads = split_heads(tokens, shape, shape.kv_heads);
  if (!even_groups(shape)) {
    std::vector<at::Tensor> read;
    for (const std::int64_t head : shape.reads) read.push_back(heads.select(1, head));
    return at::stack(read, 1);
  }
  if (shape.kv_heads == shape.heads) return heads;
  return heads.repeat_interleave(shape.heads / shape.kv_heads, 1);
}

at::Tensor reduce_heads(const at::Tensor& gradient, const AttentionShape& shape) {
  if (!even_groups(shape)) {
    const at::Tensor sums = at::zeros({shape.samples, shape.kv_heads, shape.length, shape.head_dim},
                                      gradient.options());
    for (std::int64_t head = 0; head < shape.heads; ++head) {  // in a fixed order
      sums.select(1, shape.reads[static_cast<std::size_t>(head)]).add_(gradient.select(1, head));
    }
    return merge_heads(sums, shape);
  }
  if (shape.kv_heads == shape.heads) return merge_heads(gradient, shape);
  const at::Tensor groups = gradient.reshape(
      {shape.samples, shape.kv_heads, shape.heads / shape.kv_heads, shape.length, shape.head_dim});
  return merge_heads(groups.sum(2), shape);
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionShape& shape, const at::Tensor& mask, AttentionState& state) {
  state.query = split_heads(query, shape, shape.heads);
  state.key = repeat_heads(key, shape);
  state.value = repeat_heads(value, shape);
  state.mask = mask;
  auto [output, log_sum] = ops::attention(state.query, state.key, state.value, mask);
  state.output = std::move(output);
  state.log_sum = std::move(log_sum);
  return merge_heads(state.output, shape);
}

AttentionGradients attention_backward(const AttentionState& state, const AttentionShape& shape,
                                      const at::Tensor& gradient) {
  auto [dq, dk, dv] =
      ops::attention_backward(split_heads(gradient, shape, shape.heads), state.query, state.key,
                              state.value, state.mask, {state.output, state.log_sum});
  return {merge_heads(dq, shape), reduce_heads(dk, shape), reduce_heads(dv, shape)};
}

at::Tensor document_mask(const at::Tensor& document_ids, at::ScalarType type) {
  const std::int64_t length = document_ids.size(1);
  const at::Tensor same = document_ids.unsqueeze(2).eq(document_ids.unsqueeze(1)).unsqueeze(1);
  const at::Tensor allowed =
      at::ones({length, length}, document_ids.options().dtype(at::kBool)).tril_().logical_and(same);
  return at::zeros(allowed.sizes(), document_ids.options().dtype(type))
      .masked_fill_(allowed.logical_not(), -std::numeric_limits<double>::infinity());
}

at::Tensor token_positions(const at::Tensor& ids, const at::Tensor& document_ids) {
  const std::int64_t samples = ids.size(0), length = ids.size(1);
  const at::TensorOptions options = ids.options().dtype(at::kLong);
  const at::Tensor running = at::arange(length, options).expand({samples, length});
  if (!document_ids.defined()) return running.contiguous().view({-1});
  // The running position of the latest start of a document.
  at::Tensor starts = at::zeros({samples, length}, options);
  if (length > 1) {
    const at::Tensor changed =
        document_ids.narrow(1, 1, length - 1).ne(document_ids.narrow(1, 0, length - 1));
    starts.narrow(1, 1, length - 1).copy_(running.narrow(1, 1, length - 1) * changed);
  }
  return (running - std::get<0>(starts.cummax(1))).flatten();
}

}  // namespace troika
