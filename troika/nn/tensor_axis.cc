#include <ATen/ATen.h>
#include <troika/nn/tensor_axis.h>

#include <utility>

namespace troika {

std::string LayerLabel::text() const {
  std::string text;
  text.reserve(64);
  return text.append(layer)
      .append(" ")
      .append(what)
      .append(", microbatch ")
      .append(std::to_string(pass.microbatch))
      .append(" (stage ")
      .append(std::to_string(pass.stage))
      .append(")");
}

TensorAxis::TensorAxis(Group group, Seconds timeout)
    : group_(std::move(group)), timeout_(timeout) {}

std::vector<std::int64_t> TensorAxis::slice_sizes(std::int64_t tokens, std::int64_t dim) const {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < size(); ++rank) {
    sizes.push_back(even_split(tokens, rank, size()).count * dim);
  }
  return sizes;
}

at::Tensor TensorAxis::all_gather_tokens(const at::Tensor& local, std::int64_t tokens,
                                         const LayerLabel& label) const {
  if (!split()) return local;
  const at::Tensor all = at::empty({tokens, local.size(1)}, local.options());
  const std::string text = label.text();
  group_
      .all_gather(all, local.contiguous(), {text, Deadline::in(timeout_)},
                  slice_sizes(tokens, local.size(1)))
      .wait();
  return all;
}

at::Tensor TensorAxis::reduce_scatter_tokens(const at::Tensor& partial,
                                             const LayerLabel& label) const {
  if (!split()) return partial;
  const std::int64_t tokens = partial.size(0), dim = partial.size(1);
  const at::Tensor own = at::empty({slice_of(tokens).count, dim}, partial.options());
  const std::string text = label.text();
  group_
      .reduce_scatter(own, partial.contiguous(), ReduceOp::kSum, {text, Deadline::in(timeout_)},
                      slice_sizes(tokens, dim))
      .wait();
  return own;
}

at::Tensor TensorAxis::all_gather_each(const at::Tensor& own, const LayerLabel& label) const {
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), size());
  if (!split()) return own.view(shape);
  const at::Tensor all = at::empty(shape, own.options());
  const std::string text = label.text();
  group_.all_gather(all, own.contiguous(), {text, Deadline::in(timeout_)}).wait();
  return all;
}

void TensorAxis::mark_replicated(ParameterSpec& spec) const {
  if (!split()) return;
  spec.partial_over.push_back(Axis::kTensor);
  if (rank() != 0) spec.owned = 0;
}

}  // namespace troika
