#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <troika/base/random.h>
#include <troika/ops/adamw.h>
#include <troika/ops/attention.h>
#include <troika/ops/batch_norm.h>
#include <troika/ops/cross_entropy.h>
#include <troika/ops/dropout.h>
#include <troika/ops/embedding.h>
#include <troika/ops/kernels.h>
#include <troika/ops/norm.h>
#include <troika/ops/product.h>
#include <troika/ops/rotary.h>
#include <troika/ops/sums.h>
#include <troika/ops/swiglu.h>

#include <array>
#include <numbers>
#include <string_view>

namespace troika::ops {
namespace {

constexpr std::array kSchemas = {
    "rms_norm(Tensor input, Tensor weight, float eps) -> (Tensor, Tensor)",
    "rms_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor reciprocal)"
    " -> (Tensor, Tensor)",
    "layer_norm(Tensor input, Tensor weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    "layer_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor mean,"
    " Tensor reciprocal) -> (Tensor, Tensor, Tensor)",
    "batch_norm(Tensor input, Tensor? shortcut, Tensor weight, Tensor bias, float eps, bool relu)"
    " -> (Tensor, Tensor, Tensor)",
    "batch_norm_backward(Tensor gradient, Tensor output, Tensor input, Tensor weight, Tensor mean,"
    " Tensor variance, float eps, bool relu) -> (Tensor, Tensor, Tensor, Tensor)",
    "square_sums(Tensor[] values) -> Tensor",
    "column_sums(Tensor rows, ScalarType type) -> Tensor",
    "add_product_(Tensor(a!) sum, Tensor left, Tensor right, bool overwrites) -> ()",
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask) -> (Tensor, Tensor)",
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask,"
    " Tensor output, Tensor log_sum) -> (Tensor, Tensor, Tensor)",
    "cross_entropy(Tensor logits, Tensor targets) -> Tensor",
    "cross_entropy_with_gradient_(Tensor(a!) logits, Tensor targets, float scale) -> Tensor",
    "cross_entropy_slice(Tensor logits, Tensor targets, int first_class) -> Tensor",
    "cross_entropy_of_slices(Tensor slices, Tensor targets) -> Tensor",
    "cross_entropy_gradient_of_slice_(Tensor(a!) logits, Tensor targets, int first_class,"
    " Tensor slices, float scale) -> ()",
    "swiglu(Tensor gate, Tensor up) -> Tensor",
    "swiglu_backward(Tensor gradient, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    "dropout(Tensor input, Tensor sample_ids, int first, int per_sample, float probability,"
    " int key) -> Tensor",
    "add_rows_(Tensor(a!) table, Tensor indices, Tensor rows) -> ()",
    "rotate_(Tensor(a!) heads, Tensor positions, Tensor table, bool backward) -> ()",
    "adamw_(Tensor(a!) master, Tensor gradient, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq,"
    " Tensor scale, Tensor applies, float beta1, float beta2, float correction, float eps, float "
    "rate,"
    " float shrink) -> ()",
};

#define TROIKA_REGISTER_COMPOSITE(name)                                            \
  library.impl(#name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, \
                                      TORCH_FN(composite::name)))
#define TROIKA_REGISTER(name)                                                        \
  library.impl(#name, torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(cpu::name)));  \
  library.impl(#name, torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(cpu::name))); \
  TROIKA_REGISTER_COMPOSITE(name)

void register_kernels(torch::Library& library) {
  TROIKA_REGISTER(rms_norm);
  TROIKA_REGISTER(rms_norm_backward);
  TROIKA_REGISTER(layer_norm);
  TROIKA_REGISTER(layer_norm_backward);
  TROIKA_REGISTER(batch_norm);
  TROIKA_REGISTER(batch_norm_backward);
  TROIKA_REGISTER(attention);
  TROIKA_REGISTER(attention_backward);
  TROIKA_REGISTER(cross_entropy);
  TROIKA_REGISTER(cross_entropy_with_gradient_);
  TROIKA_REGISTER(cross_entropy_slice);
  TROIKA_REGISTER(cross_entropy_of_slices);
  TROIKA_REGISTER(cross_entropy_gradient_of_slice_);
  TROIKA_REGISTER(swiglu);
  TROIKA_REGISTER(swiglu_backward);
  TROIKA_REGISTER(dropout);
  TROIKA_REGISTER(add_rows_);
  TROIKA_REGISTER(rotate_);
  TROIKA_REGISTER(add_product_);
  // Of shards on the host the optimiser makes loops, and the others are ATen's there.
  TROIKA_REGISTER_COMPOSITE(adamw_);
  TROIKA_REGISTER_COMPOSITE(square_sums);
  TROIKA_REGISTER_COMPOSITE(column_sums);
}

#undef TROIKA_REGISTER
#undef TROIKA_REGISTER_COMPOSITE

// Stays as long as the process: LibTorch forgets operators whose library ends. A program that holds
// this code twice (its own copy and a plug-in's) has them from the first.
torch::Library* make_library() {
  if (c10::Dispatcher::singleton().findSchema({"troika::rms_norm", ""})) return nullptr;
  auto* const library = new torch::Library(torch::Library::DEF, "troika", std::nullopt, __FILE__,
                                           static_cast<std::uint32_t>(__LINE__));
  for (const char* const schema : kSchemas) library->def(schema);
  register_kernels(*library);
  return library;
}

// The operator of a kernel's name and signature.
template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, Signature*) {
  define_operators();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Calls the operator `name`.
#define TROIKA_CALL(name, ...)                                             \
  [&] {                                                                    \
    static const auto kOperator = find("troika::" #name, composite::name); \
    return kOperator.call(__VA_ARGS__);                                    \
  }()

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// `input` holds the elements from `first` on of samples of `per_sample` elements each.
at::Tensor dropout_elements(const at::Tensor& input, std::int64_t first, std::int64_t per_sample,
                            const at::Tensor& sample_ids, double probability,
                            const DropoutKey& key) {
  const std::uint64_t stream = mix_bits(key.stream ^ static_cast<std::uint64_t>(key.step));
  return TROIKA_CALL(dropout, input, sample_ids, first, per_sample, probability,
                     static_cast<std::int64_t>(stream));
}

}  // namespace

void define_operators() {
  static const torch::Library* const kLibrary = make_library();
  static_cast<void>(kLibrary);
}

at::Tensor number_like(const at::Tensor& meta) {
  return at::empty({}, meta.options().dtype(at::kDouble));
}

RmsNormResult rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  auto [output, reciprocal] = TROIKA_CALL(rms_norm, input, weight, eps);
  return {std::move(output), std::move(reciprocal)};
}

RmsNormGradients rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                   const at::Tensor& weight, const at::Tensor& reciprocal) {
  auto [of_input, of_weight] = TROIKA_CALL(rms_norm_backward, gradient, input, weight, reciprocal);
  return {std::move(of_input), std::move(of_weight)};
}

LayerNormResult layer_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, double eps) {
  auto [output, mean, reciprocal] = TROIKA_CALL(layer_norm, input, weight, optional(bias), eps);
  return {std::move(output), std::move(mean), std::move(reciprocal)};
}

LayerNormGradients layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                       const at::Tensor& weight, const at::Tensor& mean,
                                       const at::Tensor& reciprocal) {
  auto [of_input, of_weight, of_bias] =
      TROIKA_CALL(layer_norm_backward, gradient, input, weight, mean, reciprocal);
  return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
}

BatchNormResult batch_norm(const at::Tensor& input, const at::Tensor& shortcut,
                           const at::Tensor& weight, const at::Tensor& bias, double eps,
                           Relu relu) {
  auto [output, mean, variance] =
      TROIKA_CALL(batch_norm, input, optional(shortcut), weight, bias, eps, relu == Relu::kApplied);
  return {std::move(output), std::move(mean), std::move(variance)};
}

BatchNormGradients batch_norm_backward(const at::Tensor& gradient, const BatchNormResult& result,
                                       const at::Tensor& input, const at::Tensor& weight,
                                       double eps, Relu relu) {
  auto [of_input, of_shortcut, of_weight, of_bias] =
      TROIKA_CALL(batch_norm_backward, gradient, result.output, input, weight, result.mean,
                  result.variance, eps, relu == Relu::kApplied);
  return {std::move(of_input), std::move(of_shortcut), std::move(of_weight), std::move(of_bias)};
}

void add_product_(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right,
                  Write write) {
  TROIKA_CALL(add_product_, sum, left, right, write == Write::kOverwrite);
}

at::Tensor square_sums(at::TensorList values) {
  if (values.empty()) return at::empty({0}, at::kDouble);  // no tensor says which kernel
  return TROIKA_CALL(square_sums, values);
}

at::Tensor column_sums(const at::Tensor& rows, at::ScalarType type) {
  return TROIKA_CALL(column_sums, rows, type);
}

AttentionResult attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const at::Tensor& mask) {
  auto [output, log_sum] = TROIKA_CALL(attention, query, key, value, optional(mask));
  return {std::move(output), std::move(log_sum)};
}

AttentionInputGradients attention_backward(const at::Tensor& gradient, const at::Tensor& query,
                                           const at::Tensor& key, const at::Tensor& value,
                                           const at::Tensor& mask, const AttentionResult& result) {
  auto [of_query, of_key, of_value] = TROIKA_CALL(attention_backward, gradient, query, key, value,
                                                  optional(mask), result.output, result.log_sum);
  return {std::move(of_query), std::move(of_key), std::move(of_value)};
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return TROIKA_CALL(cross_entropy, logits, targets);
}

at::Tensor cross_entropy_with_gradient_(const at::Tensor& logits, const at::Tensor& targets,
                                        double scale) {
  return TROIKA_CALL(cross_entropy_with_gradient_, logits, targets, scale);
}

at::Tensor cross_entropy_slice(const at::Tensor& logits, const at::Tensor& targets,
                               std::int64_t first_class) {
  return TROIKA_CALL(cross_entropy_slice, logits, targets, first_class);
}

at::Tensor cross_entropy_of_slices(const at::Tensor& slices, const at::Tensor& targets) {
  return TROIKA_CALL(cross_entropy_of_slices, slices, targets);
}

void cross_entropy_gradient_of_slice_(const at::Tensor& logits, const at::Tensor& targets,
                                      std::int64_t first_class, const at::Tensor& slices,
                                      double scale) {
  TROIKA_CALL(cross_entropy_gradient_of_slice_, logits, targets, first_class, slices, scale);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return TROIKA_CALL(swiglu, gate, up);
}

SwiGluInputGradients swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate,
                                     const at::Tensor& up) {
  auto [of_gate, of_up] = TROIKA_CALL(swiglu_backward, gradient, gate, up);
  return {std::move(of_gate), std::move(of_up)};
}

at::Tensor dropout(const at::Tensor& input, const at::Tensor& sample_ids, double probability,
                   const DropoutKey& key) {
  if (probability == 0 || input.numel() == 0) return input;
  return dropout_elements(input, 0, input.numel() / sample_ids.numel(), sample_ids, probability,
                          key);
}

at::Tensor dropout_rows(const at::Tensor& input, const RowSlice& slice,
                        const at::Tensor& sample_ids, double probability, const DropoutKey& key) {
  if (probability == 0 || input.numel() == 0) return input;
  const std::int64_t dim = input.size(1);
  return dropout_elements(input, slice.first_row * dim, slice.rows_per_sample * dim, sample_ids,
                          probability, key);
}

void add_rows_(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  TROIKA_CALL(add_rows_, table, indices, rows);
}

namespace {

// Angles between neighbouring positions.
at::Tensor scale_frequencies(const at::Tensor& frequency, const RotaryAngles& angles) {
  if (angles.scaling == RotaryScaling::kNone) return frequency;
  at::Tensor divided = frequency / angles.factor;
  if (angles.scaling == RotaryScaling::kLinear) return divided;
  constexpr double kTurn = 2 * std::numbers::pi;
  const at::Tensor waves = frequency * (static_cast<double>(angles.original_len) / kTurn);
  const at::Tensor kept =
      ((waves - angles.low_freq_factor) / (angles.high_freq_factor - angles.low_freq_factor))
          .clamp(0, 1);
  return (1 - kept) * divided + kept * frequency;
}

}  // namespace

at::Tensor rotary_table(std::int64_t positions, std::int64_t head_dim, const RotaryAngles& angles,
                        const at::TensorOptions& options) {
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kDouble) / static_cast<double>(head_dim);
  const at::Tensor frequency = scale_frequencies(at::pow(angles.theta, -exponent), angles);
  const at::Tensor angle = at::outer(at::arange(positions, at::kDouble), frequency);
  return at::stack({angle.cos(), angle.sin()}).to(options);
}

void rotate_(const at::Tensor& heads, const at::Tensor& positions, const at::Tensor& table,
             Rotation rotation) {
  TROIKA_CALL(rotate_, heads, positions, table, rotation == Rotation::kBackward);
}

void adamw_(const at::Tensor& master, const at::Tensor& gradient, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const at::Tensor& scale, const at::Tensor& applies,
            const AdamWConstants& constants) {
  TROIKA_CALL(adamw_, master, gradient, exp_avg, exp_avg_sq, scale, applies, constants.beta1,
              constants.beta2, constants.correction, constants.eps, constants.rate,
              constants.shrink);
}

}  // namespace troika::ops
