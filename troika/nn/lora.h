// Low-rank adapters (LoRA, Hu et al. 2021, section 4.1): beside the frozen weight W [out, in] of a
// linear layer a trained pair A [rank, in] and B [out, rank], with which it computes
// y = W x + alpha / rank * B A dropout(x). Names and initial values are those of the package
// `peft`.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/lora_options.h>
#include <troika/nn/tensor_axis.h>
#include <troika/param/arena.h>
#include <troika/param/spec.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// Keys the masks of a pass: rows [samples x rows_per_sample] of samples, in a step.
struct LoraDraws {
  std::int64_t rows_per_sample = 1;
  at::Tensor sample_ids = {};
  std::int64_t step = 0;
};

// Holds what a layer's forward pass leaves for its backward pass, and that for the gradients of the
// pair, which are computed where the working weights may be gone.
struct LoraPass {
  LoraDraws draws;
  at::Tensor inner = {};           // A x [n, rank]
  at::Tensor inner_gradient = {};  // [n, rank]
};

// The pair beside one linear layer, whole or this rank's slices of it. Where the weight is cut by
// outputs, B is, and the gradient of A is a partial sum over the tensor axis; where it is cut by
// inputs, A is, and the output and the gradient of B are partial sums.
class LoraPair {
 public:
  // Takes the spec of the layer's weight, "<layer>.weight" [out, in] with its cut.
  LoraPair(const ParameterSpec& weight, const TensorAxis& axis, const LoraTargets& targets);

  void declare(std::vector<ParameterSpec>& specs) const;
  void bind(const Arena& arena);
  [[nodiscard]] bool is_trained() const { return a_->is_trained() || b_->is_trained(); }

  // Adds to the layer's output [n, outputs here], from its input [n, inputs here]. `pass` is null
  // in an evaluation, in which nothing is dropped.
  void add_output_(const at::Tensor& output, const at::Tensor& input, LoraPass* pass) const;
  // Prepares the gradients of A and B, from that of the layer's output.
  void backward_inner(const at::Tensor& gradient, LoraPass& pass) const;
  // Adds to the gradient of the layer's input, after backward_inner().
  void add_input_gradient_(const at::Tensor& input_gradient, const LoraPass& pass) const;
  // Adds to the gradients of A and B, after backward_inner().
  void add_gradients(const at::Tensor& gradient, const at::Tensor& input,
                     const LoraPass& pass) const;

 private:
  [[nodiscard]] at::Tensor dropped(const at::Tensor& input, const LoraDraws& draws) const;

  double scale_, dropout_;
  std::uint64_t stream_;
  ParameterSpec a_spec_, b_spec_;
  Parameter* a_ = nullptr;
  Parameter* b_ = nullptr;
};

// Returns whether a pattern of LoraOptions::match fits a layer.
[[nodiscard]] bool fits_layer(const std::string& pattern, const std::string& layer);
// A layer that shares its weight gets no pair, and other patterns leave it out. Throws UsageError
// where match has its name, or an end of it.
void refuse_shared_weight(const LoraOptions& options, const std::string& layer);

// Return the specs of a whole pair beside the layer `layer`, whose weight is [out, in].
[[nodiscard]] ParameterSpec lora_a_spec(const std::string& layer, std::int64_t rank,
                                        std::int64_t in);
[[nodiscard]] ParameterSpec lora_b_spec(const std::string& layer, std::int64_t out,
                                        std::int64_t rank);

}  // namespace troika
