// The keys of [model] with kind = "gpt".
#pragma once

#include <troika/models/kind.h>
#include <troika/nn/activation_function.h>
#include <troika/nn/normalization.h>
#include <troika/ops/rotary.h>

#include <cstdint>

namespace troika {

enum class Position { kRope, kLearned };

template <>
std::span<const std::string_view> names_of<Position>();
template <>
std::span<const std::string_view> names_of<ops::RotaryScaling>();

struct GptOptions {
  std::int64_t layers = 6;
  std::int64_t dim = 384;
  std::int64_t heads = 6;
  std::int64_t kv_heads = 6;   // default: heads
  std::int64_t head_dim = 64;  // default: dim / heads
  std::int64_t ffn_dim = 1024;
  std::int64_t vocab_size = 256;
  std::int64_t seq_len = 256;
  Norm norm = Norm::kRmsNorm;
  double norm_eps = 1e-5;
  Position position = Position::kRope;
  double rope_theta = 10000.0;
  ops::RotaryScaling rope_scaling = ops::RotaryScaling::kNone;
  double rope_factor = 1.0;
  double rope_low_freq_factor = 1.0;
  double rope_high_freq_factor = 4.0;
  std::int64_t rope_original_len = 8192;
  ActivationFunction activation = ActivationFunction::kSwiGlu;
  bool tied_embeddings = true;
  bool bias = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  double dropout = 0.0;

  bool operator==(const GptOptions&) const = default;
};

[[nodiscard]] const ModelKind& gpt_kind();

}  // namespace troika
