#include <troika/base/text.h>
#include <troika/config/choices.h>
#include <troika/config/fields.h>
#include <troika/config/layout.h>
#include <troika/config/toml_text.h>
#include <troika/config/validate.h>

#include <algorithm>
#include <cmath>

namespace troika {
namespace {

// The range of each key by itself.
class RangeCheck {
 public:
  RangeCheck(const Recipe& recipe, const Field& field, const Origins& origins)
      : recipe_(recipe), field_(field), origins_(origins) {}

  void operator()(const IntegerSpec& spec) const { check(spec.at.read(recipe_), spec.range); }
  void operator()(const AutoIntegerSpec& spec) const {
    if (spec.at.read(recipe_)) check(*spec.at.read(recipe_), spec.range);
  }
  void operator()(const NumberSpec& spec) const { check(spec.at.read(recipe_), spec.range); }
  void operator()(const SecondsSpec& spec) const { check(spec.at.read(recipe_), spec.range); }
  void operator()(const BoolSpec&) const {}
  void operator()(const TextSpec& spec) const { check(spec.at.read(recipe_)); }
  void operator()(const ChoiceSpec& spec) const {
    if ((spec.allowed >> spec.read(recipe_) & 1U) == 0) {
      fail(toml_value(recipe_, field_) + " is not one of " + join(spec.allowed_names(), ", "));
    }
  }
  template <class ListSpec>
  void operator()(const ListSpec& spec) const {
    for (const auto& value : spec.at.read(recipe_)) {
      if constexpr (requires { spec.range; }) {
        check(value, spec.range);
      } else {
        check(value);
      }
    }
  }

 private:
  void check(std::int64_t value, const IntegerRange& range) const {
    if (!range.contains(value)) {
      fail(std::to_string(value) + " is out of range: " + range.describe());
    }
  }
  void check(double value, const NumberRange& range) const {
    if (!std::isfinite(value)) fail("expected a finite number, found " + toml_number(value));
    if (!range.contains(value)) {
      fail(toml_number(value) + " is out of range: " + range.describe());
    }
  }
  void check(const std::string& value) const {
    if (value.empty()) fail("must not be empty");
    if (value.find('\0') != std::string::npos) fail("contains a NUL character");
  }
  [[noreturn]] void fail(const std::string& what) const {
    origins_.fail({field_.full_key()}, std::string(field_.key) + ": " + what);
  }

  const Recipe& recipe_;
  const Field& field_;
  const Origins& origins_;
};

void check_name(const Recipe& recipe, const Origins& origins) {
  const std::string& name = recipe.name;
  const bool usable = name.size() <= 128 && name.front() != '.' && name.front() != '-' &&
                      std::none_of(name.begin(), name.end(), [](unsigned char c) {
                        return c < 0x20 || c == 0x7F || c == '/' || c == '\\';
                      });
  if (!usable) {
    origins.fail({"name"}, "name: " + quote(name) + " cannot name a folder",
                 "use letters, digits, '.', '_' and '-', at most 128 of them, not starting with "
                 "'.' or '-'");
  }
}

void check_attention(const ModelRecipe& model, const Origins& origins) {
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
}

void check_vocabulary(const Recipe& recipe, const Origins& origins) {
  const bool bytes = recipe.data.kind == DataKind::kText && recipe.data.tokenizer == "bytes";
  if (bytes && recipe.model.vocab_size < 256) {
    origins.fail({"model.vocab_size"}, "vocab_size = " + std::to_string(recipe.model.vocab_size) +
                                           " is too small for tokenizer = \"bytes\"; at least 256");
  }
}

void check_data(const Recipe& recipe, const Origins& origins) {
  const DataRecipe& data = recipe.data;
  const bool is_random = data.kind == DataKind::kRandom;
  if (recipe.model.kind == ModelKind::kMlp && !is_random) {
    origins.fail({"data.kind"},
                 "kind = \"" + std::string(name_of(data.kind)) +
                     "\" needs a language model, and [model] kind is \"mlp\"; write kind = "
                     "\"random\", or [model] kind = \"gpt\"");
  }
  if (!data.weights.empty() && data.weights.size() != data.paths.size()) {
    origins.fail({"data.weights", "data.paths"},
                 "weights has " + std::to_string(data.weights.size()) + " numbers for " +
                     std::to_string(data.paths.size()) + " paths; one for each, or none");
  }
  if (is_random && data.pack != Pack::kConcatenate) {
    origins.fail({"data.pack"}, "pack = \"" + std::string(name_of(data.pack)) +
                                    "\" needs documents, and kind = \"random\" has none; write "
                                    "pack = \"concatenate\"");
  }
}

// Counters of samples and tokens are 64-bit.
void check_totals(const Recipe& recipe, const Origins& origins) {
  const std::int64_t width = recipe.model.kind == ModelKind::kGpt ? recipe.model.seq_len : 1;
  const double total = static_cast<double>(recipe.train.steps) *
                       static_cast<double>(recipe.train.global_batch_size) *
                       static_cast<double>(width);
  if (total > 9e18) {
    origins.fail({"train.steps", "train.global_batch_size"},
                 "steps x global_batch_size x seq_len is " + toml_number(total) +
                     " tokens; the counter ends at 9e18");
  }
}

void check_optimizer(const OptimizerRecipe& optimizer, const Origins& origins) {
  const bool uses_momentum =
      optimizer.kind == OptimizerKind::kSgd || optimizer.kind == OptimizerKind::kLars;
  if (uses_momentum && optimizer.nesterov && optimizer.momentum == 0) {
    origins.fail({"optimizer.nesterov"},
                 "nesterov = true needs momentum; write momentum = 0.9, or nesterov = false");
  }
}

void check_observe(const Recipe& recipe, const Origins& origins) {
  const auto& trace = recipe.observe.trace_steps;
  if (trace.empty()) return;
  if (trace.size() != 2 || trace[0] > trace[1]) {
    origins.fail({"observe.trace_steps"},
                 "trace_steps: expected [first, last] with first <= last, or []");
  }
}

}  // namespace

void validate(const Recipe& recipe, const Origins& origins, KnownRanks ranks) {
  for (const Field& field : fields()) {
    if (!field.applies_to(recipe.model.kind)) continue;
    std::visit(RangeCheck(recipe, field, origins), field.spec);
  }
  check_name(recipe, origins);
  if (recipe.model.kind == ModelKind::kGpt) {
    check_attention(recipe.model, origins);
    check_vocabulary(recipe, origins);
  }
  check_data(recipe, origins);
  check_totals(recipe, origins);
  check_optimizer(recipe.optimizer, origins);
  check_observe(recipe, origins);
  check_split(recipe, origins, ranks);
}

}  // namespace troika
