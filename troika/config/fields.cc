#include <troika/config/choices.h>
#include <troika/config/fields.h>
#include <troika/config/longest_timeout.h>

#include <concepts>

namespace troika {
namespace {

template <auto kSection, auto kMember>
constexpr auto& member_of(auto& recipe) {
  if constexpr (std::is_null_pointer_v<decltype(kSection)>) {
    return recipe.*kMember;
  } else {
    return (recipe.*kSection).*kMember;
  }
}

// Writes the lines of one section.
template <auto kSection>
struct In {
  std::string_view section;

  template <auto kMember>
  static constexpr auto accessor() {
    using T =
        std::remove_reference_t<decltype(member_of<kSection, kMember>(std::declval<Recipe&>()))>;
    return Accessor<T>{
        [](Recipe& recipe) -> T& { return member_of<kSection, kMember>(recipe); },
        [](const Recipe& recipe) -> const T& { return member_of<kSection, kMember>(recipe); }};
  }

  template <auto kMember>
  constexpr Field integer(std::string_view key, IntegerRange range, std::string_view doc) const {
    return {section, key, IntegerSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field auto_integer(std::string_view key, IntegerRange range,
                               std::string_view doc) const {
    return {section, key, AutoIntegerSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field number(std::string_view key, NumberRange range, std::string_view doc) const {
    return {section, key, NumberSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field seconds(std::string_view key, std::string_view doc) const {
    return {section, key,
            SecondsSpec{accessor<kMember>(),
                        {0, kLongestTimeout, NumberRange::End::kOpen, NumberRange::End::kClosed}},
            doc};
  }
  template <auto kMember>
  constexpr Field boolean(std::string_view key, std::string_view doc) const {
    return {section, key, BoolSpec{accessor<kMember>()}, doc};
  }
  template <auto kMember>
  constexpr Field text(std::string_view key, std::string_view doc) const {
    return {section, key, TextSpec{accessor<kMember>()}, doc};
  }
  // `allowed` lists enumerators; none: all.
  template <auto kMember, class... Enum>
  Field choice(std::string_view key, std::string_view doc, Enum... allowed) const {
    using T =
        std::remove_reference_t<decltype(member_of<kSection, kMember>(std::declval<Recipe&>()))>;
    static_assert((std::same_as<T, Enum> && ...));
    const std::uint32_t mask =
        sizeof...(allowed) == 0 ? ~0U : (0U | ... | (1U << static_cast<unsigned>(allowed)));
    return {section, key,
            ChoiceSpec{names_of<T>(), mask,
                       [](const Recipe& recipe) {
                         return static_cast<int>(member_of<kSection, kMember>(recipe));
                       },
                       [](Recipe& recipe, int value) {
                         member_of<kSection, kMember>(recipe) = static_cast<T>(value);
                       }},
            doc};
  }
  template <auto kMember>
  constexpr Field integers(std::string_view key, IntegerRange range, std::string_view doc) const {
    return {section, key, IntegerListSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field numbers(std::string_view key, NumberRange range, std::string_view doc) const {
    return {section, key, NumberListSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field pair(std::string_view key, NumberRange range, std::string_view doc) const {
    return {section, key, NumberPairSpec{accessor<kMember>(), range}, doc};
  }
  template <auto kMember>
  constexpr Field texts(std::string_view key, std::string_view doc) const {
    return {section, key, TextListSpec{accessor<kMember>()}, doc};
  }
};

constexpr In<nullptr> kTop{""};
constexpr In<&Recipe::model> kModel{"model"};
constexpr In<&Recipe::data> kData{"data"};
constexpr In<&Recipe::train> kTrain{"train"};
constexpr In<&Recipe::optimizer> kOptimizer{"optimizer"};
constexpr In<&Recipe::parallel> kParallel{"parallel"};
constexpr In<&Recipe::comm> kComm{"comm"};
constexpr In<&Recipe::checkpoint> kCheckpoint{"checkpoint"};
constexpr In<&Recipe::observe> kObserve{"observe"};
constexpr In<&Recipe::debug> kDebug{"debug"};

constexpr auto kSections = std::to_array<std::string_view>(
    {"model", "data", "train", "optimizer", "parallel", "comm", "checkpoint", "observe", "debug"});

// Upper limits keep products of two sizes within 64 bits.
constexpr IntegerRange kAny{0};
constexpr IntegerRange kPositive{1};
constexpr IntegerRange kSize{1, 10'000'000};
constexpr IntegerRange kCount{1, 1'000'000'000};
constexpr IntegerRange kSwitchable{0, 1'000'000'000};
constexpr IntegerRange kAxis{1, 10'000};
constexpr NumberRange kNonNegative{};
constexpr NumberRange kAboveZero{.lower = NumberRange::End::kOpen};
constexpr NumberRange kBelowOne{0, 1};

// clang-format off
constexpr ModelKind kGpt = ModelKind::kGpt;
constexpr ModelKind kMlp = ModelKind::kMlp;

std::vector<Field> top_fields() {
  return {
      kTop.text<&Recipe::name>("name", "the run's name, and its folder under `runs_dir`").required(),
      kTop.integer<&Recipe::seed>("seed", kAny, "keys initial values, the order of samples and dropout"),
      kTop.text<&Recipe::runs_dir>("runs_dir", "where run folders are made; relative to the current folder"),
  };
}

std::vector<Field> model_fields() {
  using M = ModelRecipe;
  using A = ActivationFunction;
  return {
      kModel.choice<&M::kind>("kind", "which model; picks the keys below").required(),
      kModel.integer<&M::layers>("layers", kSize, "transformer blocks").only(kGpt).required(),
      kModel.integer<&M::dim>("dim", kSize, "width of the residual stream").only(kGpt).required(),
      kModel.integer<&M::heads>("heads", kSize, "attention heads").only(kGpt).required(),
      kModel.integer<&M::kv_heads>("kv_heads", kSize, "heads of keys and values; divides `heads`").only(kGpt).derived_from("heads"),
      kModel.integer<&M::head_dim>("head_dim", kSize, "width of a head; even for rope").only(kGpt).derived_from("dim / heads"),
      kModel.integer<&M::ffn_dim>("ffn_dim", kSize, "hidden width of the feed-forward part").only(kGpt).required(),
      kModel.integer<&M::vocab_size>("vocab_size", kSize, "token ids; at least 256 for bytes").only(kGpt).required(),
      kModel.integer<&M::seq_len>("seq_len", kSize, "tokens of a sample").only(kGpt).required(),
      kModel.choice<&M::norm>("norm", "normalisation layers").only(kGpt),
      kModel.number<&M::norm_eps>("norm_eps", kAboveZero, "added to the variance").only(kGpt),
      kModel.choice<&M::position>("position", "rotary (rotate-half) or learned positions").only(kGpt),
      kModel.number<&M::rope_theta>("rope_theta", kAboveZero, "base of the rotary angles").only(kGpt),
      kModel.choice<&M::activation>("activation", "of the feed-forward part", A::kSwiGlu, A::kGelu, A::kGeluTanh).only(kGpt),
      kModel.boolean<&M::tied_embeddings>("tied_embeddings", "the output head uses the embedding's weight").only(kGpt),
      kModel.boolean<&M::bias>("bias", "true: q, k, v, o, MLP and layernorm have a bias; the head never").only(kGpt),
      kModel.number<&M::dropout>("dropout", kBelowOne, "same masks on every layout").only(kGpt),
  };
}

std::vector<Field> mlp_fields() {
  using M = ModelRecipe;
  using A = ActivationFunction;
  return {
      kModel.integer<&M::input_dim>("input_dim", kSize, "features of a sample").only(kMlp).required(),
      kModel.integers<&M::hidden_dims>("hidden_dims", kSize, "widths of the hidden layers; [] is a linear model").only(kMlp).required(),
      kModel.integer<&M::output_dim>("output_dim", kSize, "classes, or values to predict").only(kMlp).required(),
      kModel.choice<&M::activation>("activation", "between layers", A::kGelu, A::kRelu, A::kTanh).only(kMlp),
      kModel.choice<&M::loss>("loss", "cross_entropy: of class indices; mean_square: of values").only(kMlp),
  };
}

std::vector<Field> data_fields() {
  using D = DataRecipe;
  return {
      kData.choice<&D::kind>("kind", "text files, token shards, or random numbers").required(),
      kData.texts<&D::paths>("paths", "globs, `**` descends; relative to the current folder"),
      kData.numbers<&D::weights>("weights", kAboveZero, "mixing weights, one a path; default by size"),
      kData.text<&D::tokenizer>("tokenizer", "bytes | path of a SentencePiece model"),
      kData.choice<&D::pack>("pack", "isolated: packed documents do not attend to each other"),
      kData.number<&D::held_out_fraction>("held_out_fraction", kBelowOne, "documents kept for evaluation, chosen by hash"),
  };
}

std::vector<Field> train_fields() {
  using T = TrainRecipe;
  return {
      kTrain.integer<&T::steps>("steps", kCount, "optimiser steps"),
      kTrain.integer<&T::global_batch_size>("global_batch_size", kCount, "samples per optimiser step, over all ranks; need not divide"),
      kTrain.integer<&T::micro_batch_size>("micro_batch_size", kCount, "samples per forward pass"),
      kTrain.choice<&T::precision>("precision", "auto: bf16 where the machine has it natively, else fp32"),
      kTrain.number<&T::grad_clip>("grad_clip", kNonNegative, "largest global gradient norm; 0: off"),
      kTrain.integer<&T::evaluate_every_steps>("evaluate_every_steps", kSwitchable, "held-out loss this often; 0: never"),
      kTrain.boolean<&T::deterministic>("deterministic", "reduce in rank order also where \"auto\" joins two engines across hosts; one engine always does, and so do runs whose stages share tied embeddings, or whose groups are spread over the hosts in different patterns"),
      kTrain.choice<&T::on_nonfinite>("on_nonfinite", "when the loss or a gradient is not finite"),
  };
}

std::vector<Field> optimizer_fields() {
  using O = OptimizerRecipe;
  return {
      kOptimizer.choice<&O::kind>("kind", "the optimiser"),
      kOptimizer.number<&O::lr>("lr", kNonNegative, "peak learning rate"),
      kOptimizer.pair<&O::betas>("betas", kBelowOne, "of adamw and lamb"),
      kOptimizer.number<&O::eps>("eps", kAboveZero, "of adamw and lamb"),
      kOptimizer.number<&O::momentum>("momentum", kBelowOne, "of sgd and lars"),
      kOptimizer.boolean<&O::nesterov>("nesterov", "of sgd and lars; needs momentum"),
      kOptimizer.number<&O::weight_decay>("weight_decay", kNonNegative, "not on norms and biases"),
      kOptimizer.choice<&O::schedule>("schedule", "of the learning rate, after the warm-up"),
      kOptimizer.integer<&O::warmup_steps>("warmup_steps", kSwitchable, "linear rise to `lr`; 0: none"),
      kOptimizer.number<&O::min_lr>("min_lr", kNonNegative, "where the schedule ends"),
      kOptimizer.integer<&O::lr_base_batch_size>("lr_base_batch_size", kSwitchable, "> 0: linear scaling rule, lr x global_batch_size / this (Goyal et al. 2017)"),
  };
}

std::vector<Field> parallel_fields() {
  using P = ParallelRecipe;
  return {
      kParallel.auto_integer<&P::data>("data", kAxis, "auto: all ranks that the other axes leave"),
      kParallel.integer<&P::tensor>("tensor", kAxis, "ranks that split every layer"),
      kParallel.integer<&P::pipeline>("pipeline", kAxis, "ranks that split the row of layers"),
      kParallel.integer<&P::context>("context", kAxis, "ranks that split a sequence"),
      kParallel.integer<&P::zero_stage>("zero_stage", {0, 3}, "what data-parallel ranks share out: 1 optimiser state, 2 + gradients, 3 + parameters"),
      kParallel.integer<&P::shard>("shard", {0, 10'000}, "> 0: shard inside groups of this size, replicate across them"),
      kParallel.choice<&P::offload>("offload", "what lives in the host's memory instead of the device's"),
      kParallel.choice<&P::pipeline_schedule>("pipeline_schedule", "the order of forward and backward passes"),
      kParallel.integer<&P::virtual_stages>("virtual_stages", {1, 10'000}, "virtual stages per pipeline rank"),
      kParallel.integers<&P::stage_units>("stage_units", kSize, "units (embedding, layers, head) of each stage; []: cut by their cost"),
      kParallel.choice<&P::activation_checkpoint>("activation_checkpoint", "what is computed again in the backward pass"),
  };
}

std::vector<Field> comm_fields() {
  return {
      kComm.choice<&CommRecipe::engine>("engine", "what moves the data between ranks"),
      kComm.seconds<&CommRecipe::timeout_seconds>("timeout_seconds", "one collective of a step"),
      kComm.seconds<&CommRecipe::rendezvous_timeout_seconds>("rendezvous_timeout_seconds", "until all ranks have joined"),
      kCheckpoint.integer<&CheckpointRecipe::every_steps>("every_steps", kSwitchable, "a checkpoint this often; 0: never"),
      kCheckpoint.integer<&CheckpointRecipe::keep>("keep", kPositive, "how many checkpoints to keep"),
      kCheckpoint.seconds<&CheckpointRecipe::timeout_seconds>("timeout_seconds", "one checkpoint"),
  };
}

std::vector<Field> observe_fields() {
  return {
      kObserve.integers<&ObserveRecipe::trace_steps>("trace_steps", kPositive, "[first, last] step of a Chrome/Perfetto trace"),
      kObserve.integer<&ObserveRecipe::prometheus_port>("prometheus_port", {0, 65535}, "serves /metrics; 0: off"),
      kObserve.boolean<&ObserveRecipe::tensorboard>("tensorboard", "write TensorBoard event files"),
      kDebug.integers<&DebugRecipe::dump_steps>("dump_steps", kPositive, "writes <run>/dump/step-K/{batch,parameters,gradients}.safetensors (step 1 is the first)"),
  };
}

// clang-format on

std::vector<Field> make_fields() {
  std::vector<Field> all;
  for (const auto part : {top_fields, model_fields, mlp_fields, data_fields, train_fields,
                          optimizer_fields, parallel_fields, comm_fields, observe_fields}) {
    for (const Field& field : part()) all.push_back(field);
  }
  return all;
}

std::string integer_text(std::int64_t value) {
  return std::to_string(value);
}

std::string number_text(double value) {
  // Ends of ranges are small whole numbers.
  return std::to_string(static_cast<std::int64_t>(value));
}

}  // namespace

std::string IntegerRange::describe() const {
  if (max == IntegerRange{}.max) return integer_text(min) + " or more";
  return integer_text(min) + " to " + integer_text(max);
}

bool NumberRange::contains(double value) const {
  const bool above = lower == End::kClosed ? value >= min : value > min;
  const bool below = upper == End::kClosed ? value <= max : value < max;
  return above && below;
}

std::string NumberRange::describe() const {
  if (max == NumberRange{}.max) {
    return lower == End::kClosed ? number_text(min) + " or more" : "more than " + number_text(min);
  }
  return (lower == End::kClosed ? "[" : "(") + number_text(min) + ", " + number_text(max) +
         (upper == End::kClosed ? "]" : ")");
}

std::vector<std::string_view> ChoiceSpec::allowed_names() const {
  std::vector<std::string_view> result;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if ((allowed >> i & 1U) != 0) result.push_back(names[i]);
  }
  return result;
}

std::string Field::full_key() const {
  std::string text(section);
  if (!text.empty()) text += '.';
  return text + std::string(key);
}

std::span<const Field> fields() {
  static const std::vector<Field> kFields = make_fields();
  return kFields;
}

std::span<const std::string_view> sections() {
  return kSections;
}

const Field* find_field(std::string_view section, std::string_view key, ModelKind kind) {
  for (const Field& field : fields()) {
    if (field.section == section && field.key == key && field.applies_to(kind)) return &field;
  }
  return nullptr;
}

Recipe default_recipe(ModelKind kind) {
  Recipe recipe;
  recipe.model.kind = kind;
  if (kind == ModelKind::kMlp) recipe.model.activation = ActivationFunction::kRelu;
  return recipe;
}

std::string type_name(const Spec& spec) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"integer", "integer or \"auto\"", "number", "number of seconds", "boolean", "string",
       "string", "list of integers", "list of numbers", "list of two numbers", "list of strings"});
  static_assert(kNames.size() == std::variant_size_v<Spec>);
  return std::string(kNames[spec.index()]);
}

std::string describe_range(const Spec& spec) {
  return std::visit(
      [](const auto& typed) -> std::string {
        if constexpr (requires {
                        typed.range;
                        typed.at.read(std::declval<Recipe>()).begin();
                      }) {
          return "each " + typed.range.describe();
        } else if constexpr (requires { typed.range; }) {
          return typed.range.describe();
        } else {
          return "";
        }
      },
      spec);
}

}  // namespace troika
