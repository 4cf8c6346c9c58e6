#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/models/gpt/gpt.h>
#include <troika/models/gpt/hub.h>
#include <troika/models/gpt/logits.h>
#include <troika/models/gpt/options.h>

#include <algorithm>

namespace troika {

template <>
std::span<const std::string_view> names_of<Position>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"rope", "learned"});
  return kNames;
}

template <>
std::span<const std::string_view> names_of<ops::RotaryScaling>() {
  static constexpr auto kNames = std::to_array<std::string_view>({"none", "linear", "llama3"});
  return kNames;
}

namespace {

// clang-format off
std::vector<Key> gpt_keys() {
  using O = GptOptions;
  using K = KeysOf<O>;
  using A = ActivationFunction;
  return {
      K::integer<&O::layers>("layers", ranges::kSize, "transformer blocks").required(),
      K::integer<&O::dim>("dim", ranges::kSize, "width of the residual stream").required(),
      K::integer<&O::heads>("heads", ranges::kSize, "attention heads").required(),
      K::integer<&O::kv_heads>("kv_heads", ranges::kSize, "heads of keys and values; divides `heads`").derived_from("heads"),
      K::integer<&O::head_dim>("head_dim", ranges::kSize, "width of a head; even for rope").derived_from("dim / heads"),
      K::integer<&O::ffn_dim>("ffn_dim", ranges::kSize, "hidden width of the feed-forward part").required(),
      K::integer<&O::vocab_size>("vocab_size", ranges::kSize, "token ids; at least 256 for bytes").required(),
      K::integer<&O::seq_len>("seq_len", ranges::kSize, "tokens of a sample").required(),
      K::choice<&O::norm>("norm", "normalisation layers"),
      K::number<&O::norm_eps>("norm_eps", ranges::kAboveZero, "added to the variance"),
      K::choice<&O::position>("position", "rotary (rotate-half) or learned positions"),
      K::number<&O::rope_theta>("rope_theta", ranges::kAboveZero, "base of the rotary angles"),
      K::choice<&O::rope_scaling>("rope_scaling", "of the rotary angles, for sequences longer than those of an earlier training: none, all alike, or as in Llama 3.1"),
      K::number<&O::rope_factor>("rope_factor", ranges::kAboveZero, "with rope_scaling: what angles are divided by"),
      K::number<&O::rope_low_freq_factor>("rope_low_freq_factor", ranges::kAboveZero, "of llama3: angles that turn less often than this in rope_original_len tokens are divided"),
      K::number<&O::rope_high_freq_factor>("rope_high_freq_factor", ranges::kAboveZero, "of llama3: angles that turn more often than this stay; in between they change smoothly"),
      K::integer<&O::rope_original_len>("rope_original_len", ranges::kSize, "of llama3: tokens of a sample before"),
      K::choice<&O::activation>("activation", "of the feed-forward part", A::kSwiGlu, A::kGelu, A::kGeluTanh),
      K::boolean<&O::tied_embeddings>("tied_embeddings", "the output head uses the embedding's weight"),
      K::boolean<&O::bias>("bias", "true: q, k, v, o, MLP and layernorm have a bias; the head never"),
      K::boolean<&O::qkv_bias>("qkv_bias", "true: q, k and v have a bias also without `bias`, as in Qwen2"),
      K::boolean<&O::qk_norm>("qk_norm", "true: each head of q and k is normalised, as in Qwen3"),
      K::number<&O::dropout>("dropout", ranges::kBelowOne, "same masks on every layout"),
  };
}
// clang-format on

// Refuses a scaling of angles that there are none of, or whose passage has no width.
void check_scaling(const GptOptions& model, const Origins& origins) {
  if (model.rope_scaling == ops::RotaryScaling::kNone) return;
  const std::string scaling = "rope_scaling = \"" + std::string(name_of(model.rope_scaling)) + "\"";
  if (model.position != Position::kRope) {
    origins.fail({"model.rope_scaling", "model.position"},
                 scaling + " is of rotary positions, and position = \"" +
                     std::string(name_of(model.position)) + "\"",
                 "leave out rope_scaling, or write position = \"rope\"");
  }
  if (model.rope_scaling == ops::RotaryScaling::kLlama3 &&
      model.rope_low_freq_factor >= model.rope_high_freq_factor) {
    origins.fail({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
                 scaling + " needs rope_low_freq_factor below rope_high_freq_factor");
  }
}

class GptKind final : public Declared<ModelKind, GptOptions> {
 public:
  GptKind() : Declared("gpt", gpt_keys()) {}

  void derive(Options& options, const Origins& origins) const override {
    auto& model = options.as<GptOptions>();
    if (!origins.has("model.kv_heads")) model.kv_heads = model.heads;
    if (origins.has("model.head_dim") || model.heads < 1 || model.dim < 1) return;
    if (model.dim % model.heads != 0) {
      const std::int64_t below = model.dim / model.heads * model.heads;
      std::string works = "write dim = ";
      if (below > 0) works += std::to_string(below) + " or ";
      works += std::to_string(below + model.heads) + ", or give head_dim";
      origins.fail({"model.dim", "model.heads"},
                   "dim = " + std::to_string(model.dim) +
                       " is not a multiple of heads = " + std::to_string(model.heads),
                   works);
    }
    model.head_dim = model.dim / model.heads;
  }

  void check(const Options& options, const Origins& origins) const override {
    const auto& model = options.as<GptOptions>();
    if (model.kv_heads > model.heads || model.heads % model.kv_heads != 0) {
      std::int64_t works = std::min(model.kv_heads, model.heads);
      while (model.heads % works != 0) --works;
      origins.fail({"model.kv_heads", "model.heads"},
                   "kv_heads = " + std::to_string(model.kv_heads) +
                       " does not divide heads = " + std::to_string(model.heads) +
                       "; the nearest below that does is " + std::to_string(works));
    }
    if (model.position == Position::kRope && model.head_dim % 2 != 0) {
      origins.fail({"model.head_dim", "model.dim"},
                   "head_dim = " + std::to_string(model.head_dim) +
                       " is odd; position = \"rope\" turns pairs and needs an even one");
    }
    check_scaling(model, origins);
  }

  [[nodiscard]] ModelTraits traits(const Options& options, const LossKind&) const override {
    const auto& model = options.as<GptOptions>();
    ModelTraits traits;
    TensorSpec input{"input_ids", at::kLong, {model.seq_len}, model.vocab_size, "vocab_size"};
    TensorSpec targets = input, documents = input;
    targets.name = "targets";
    targets.role = TensorRole::kTarget;
    documents.name = kDocumentIds;
    documents.optional = true;
    traits.sample = {{input, targets, documents}, model.seq_len, "tokens"};
    traits.units = model.layers + 2;
    traits.units_are = "embedding, layers, head";
    traits.max_tensor = model.heads;
    traits.tensor_limit =
        "the model has " + plural(model.heads, "head") + ", and each rank needs one";
    // Embedding and head are units too, but allow no more stages than there are layers.
    traits.max_stages = model.layers;
    traits.stages_key = "layers";
    traits.largest_product = static_cast<double>(model.seq_len) * static_cast<double>(model.dim) *
                             static_cast<double>(std::max(model.dim, model.ffn_dim));
    traits.has_attention = true;
    traits.ties_first_and_last = model.tied_embeddings;
    traits.outputs = model.vocab_size;
    traits.outputs_key = "vocab_size";
    traits.has_own_loss = true;
    traits.own_loss =
        "cross_entropy alone, without keys of [loss]: its head never keeps all logits at once";
    return traits;
  }

  [[nodiscard]] std::string unit_name(const Options& options, std::int64_t unit) const override {
    if (unit == 0) return "embedding";
    if (unit == options.as<GptOptions>().layers + 1) return "head";
    return "layer " + std::to_string(unit - 1);
  }

  [[nodiscard]] Model build(const Options& options, const LossOptions&, std::uint64_t seed,
                            const ModelLayout& layout) const override {
    return build_gpt(options.as<GptOptions>(), seed, layout);
  }

  [[nodiscard]] std::unique_ptr<LanguageModel> language_model(const Options& options,
                                                              const Arena& arena) const override {
    return std::make_unique<GptLogits>(options.as<GptOptions>(), arena);
  }

  void save_beside(const Options& options, const std::filesystem::path& model,
                   const std::vector<NamedTensor>&) const override {
    const auto& own = options.as<GptOptions>();
    // Beside other names, the libraries would take initial values for what they do not find.
    if (!has_hub_names(own)) return;
    write_file_atomically(model.parent_path() / "config.json", hub_form_of(own).config);
  }

  [[nodiscard]] HubForm hub_form(const Options& options) const override {
    return hub_form_of(options.as<GptOptions>());
  }

  [[nodiscard]] bool read_hub_config(Options& options, std::string_view json,
                                     const std::string& source) const override {
    auto read = troika::read_hub_config(json, source);
    if (read) options.as<GptOptions>() = *read;
    return read.has_value();
  }
};

}  // namespace

const ModelKind& gpt_kind() {
  static const GptKind kKind;
  return kKind;
}

}  // namespace troika
