#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <troika/plan/memory_meta.h>
#include <troika/train/tensor_memory.h>

#include <algorithm>
#include <tuple>

namespace troika {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> shape = self.sizes().vec();
  shape[static_cast<std::size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(shape, self.options());
}

// As if all of them were: how many are is not known without values.
at::Tensor nonzero(const at::Tensor& self) {
  return at::empty({self.numel(), self.dim()}, self.options().dtype(at::kLong));
}

at::Tensor logical_and(const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(self.sizes(), other.sizes()), self.options().dtype(at::kBool));
}

at::Tensor& logical_and_(at::Tensor& self, const at::Tensor&) {
  return self;
}

at::Tensor relu(const at::Tensor& self) {
  return at::empty_like(self);
}

at::Tensor logical_not(const at::Tensor& self) {
  return at::empty(self.sizes(), self.options().dtype(at::kBool));
}

// The CPU keeps what the gradient takes.
Two log_sigmoid(const at::Tensor& self) {
  return {at::empty_like(self), at::empty_like(self)};
}

void cummax_helper(const at::Tensor&, at::Tensor&, at::Tensor&, std::int64_t) {}

// Statistics are in the type of the weight.
Three layer_norm(const at::Tensor& input, c10::SymIntArrayRef,
                 const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& /*bias*/,
                 double) {
  const at::TensorOptions options = weight ? weight->options() : input.options();
  return {at::empty_like(input), at::empty({input.size(0), 1}, options),
          at::empty({input.size(0), 1}, options)};
}

Three layer_norm_backward(const at::Tensor&, const at::Tensor& input, c10::SymIntArrayRef,
                          const at::Tensor& mean, const at::Tensor&,
                          const std::optional<at::Tensor>& weight,
                          const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  const auto like = [](bool is_wanted, const std::optional<at::Tensor>& tensor) {
    return is_wanted && tensor ? at::empty_like(*tensor) : at::Tensor();
  };
  const at::Tensor sums = at::empty({2, at::get_num_threads(), input.size(1)}, mean.options());
  return {at::empty_like(input), like(wanted[1], weight), like(wanted[2], bias)};
}

// [samples, heads, length, head_dim] as the CPU lays it out: heads inside of positions.
at::Tensor heads_like(const at::Tensor& heads) {
  return at::empty({heads.size(0), heads.size(2), heads.size(1), heads.size(3)}, heads.options())
      .transpose(1, 2);
}

at::TensorOptions accumulator(const at::Tensor& tensor) {
  return tensor.options().dtype(at::toOpMathType(tensor.scalar_type()));
}

// Attention goes over blocks of queries and keys; each thread has its own.
struct AttentionBlocks {
  explicit AttentionBlocks(const at::Tensor& query, const at::Tensor& key)
      : queries(std::min<std::int64_t>(
            query.size(2) >= 768 ? 256 : (query.size(2) >= 192 ? 64 : 32), query.size(2))),
        keys(std::min<std::int64_t>(512, key.size(2))) {}
  std::int64_t queries, keys;
};

Two attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor&, double, bool,
              const std::optional<at::Tensor>&, std::optional<double>) {
  at::Tensor output = heads_like(query);
  at::Tensor log_sum =
      at::empty({query.size(0), query.size(2), query.size(1)}, accumulator(query)).transpose(1, 2);
  const AttentionBlocks blocks(query, key);
  const at::Tensor scores =
      at::empty({at::get_num_threads(), blocks.queries * (blocks.keys + 2 + query.size(3))},
                log_sum.options());
  return {std::move(output), std::move(log_sum)};
}

Three attention_backward(const at::Tensor&, const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value, const at::Tensor&, const at::Tensor& log_sum,
                         double, bool, const std::optional<at::Tensor>&, std::optional<double>) {
  const AttentionBlocks blocks(query, key);
  Three gradients{heads_like(query), heads_like(key), heads_like(value)};
  const at::Tensor scores =
      at::empty({at::get_num_threads(), blocks.queries * blocks.keys * 2}, log_sum.options());
  return gradients;
}

torch::Library kernels() {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  library.impl("index_select", TORCH_FN(index_select));
  library.impl("nonzero", TORCH_FN(nonzero));
  library.impl("logical_and", TORCH_FN(logical_and));
  library.impl("logical_and_", TORCH_FN(logical_and_));
  library.impl("relu", TORCH_FN(relu));
  library.impl("logical_not", TORCH_FN(logical_not));
  library.impl("log_sigmoid_forward", TORCH_FN(log_sigmoid));
  library.impl("_cummax_helper", TORCH_FN(cummax_helper));
  library.impl("native_layer_norm", TORCH_FN(layer_norm));
  library.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  library.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward",
               TORCH_FN(attention_backward));
  return library;
}

}  // namespace

class MetaTensors::Guards {
  // Taking a backend's key out again leaves its bit: restore what there was.
  c10::impl::ForceDispatchKeyGuard restored_;
  torch::Library kernels_ = kernels();
  // Every operator goes to its meta version, and so do those that make tensors, which otherwise go
  // by the device that they are asked for.
  c10::impl::IncludeDispatchKeyGuard all_meta_{c10::DispatchKey::Meta};
  c10::impl::ExcludeDispatchKeyGuard any_device_{c10::DispatchKey::BackendSelect};
};

MetaTensors::MetaTensors() {
  count_tensor_memory(at::kMeta);
  guards_ = std::make_unique<Guards>();
}

MetaTensors::~MetaTensors() = default;

}  // namespace troika
