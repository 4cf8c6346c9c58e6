#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/inference/generate.h>
#include <troika/models/gpt/gpt.h>
#include <troika/train/precision.h>
#include <troika/train/run_folder.h>
#include <troika/train/saved_model.h>

#include <algorithm>

namespace troika {
namespace {

// Draws from softmax(logits / temperature), cut to the top_k likeliest.
std::int64_t draw(at::Tensor logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) return logits.argmax().item<std::int64_t>();
  logits = logits.to(at::kDouble) / options.temperature;
  const std::int64_t kept =
      options.top_k > 0 ? std::min(options.top_k, logits.numel()) : logits.numel();
  const auto [values, ids] = logits.topk(kept);
  const at::Tensor cumulative = at::softmax(values, 0).cumsum(0);
  const auto* data = cumulative.const_data_ptr<double>();
  const auto* found = std::upper_bound(data, data + kept - 1, uniform * data[kept - 1]);
  return ids[found - data].item<std::int64_t>();
}

// Shows a text that grows at its end, as far as what comes next cannot change it any more.
class GrowingText {
 public:
  using Emit = std::function<void(std::string_view)>;
  explicit GrowingText(const Emit& emit) : emit_(emit) {}

  void grow_to(std::string_view text) {
    // SentencePiece decodes the first bytes of a character like this until the others follow.
    while (text.ends_with(kReplacementCharacter)) {
      text.remove_suffix(kReplacementCharacter.size());
    }
    show(text);
  }
  void end_with(std::string_view text) {
    show(text);
    emit(stream_.finish());
  }

 private:
  void show(std::string_view text) {
    if (text.size() <= taken_) return;
    emit(stream_.push(text.substr(taken_)));
    taken_ = text.size();
  }
  void emit(const std::string& piece) {
    if (!piece.empty()) emit_(piece);
  }

  const Emit& emit_;
  Utf8Stream stream_;
  std::size_t taken_ = 0;
};

void check_has_text(const Recipe& recipe, const std::filesystem::path& run) {
  const std::string whose = "the model in " + shown_path(run);
  if (recipe.model.kind != ModelKind::kGpt) {
    throw UsageError(whose + " is no gpt: it cannot generate text");
  }
  if (recipe.data.kind == DataKind::kRandom) {
    throw UsageError(whose + " was trained on data.kind = \"random\": its tokens stand for no text",
                     "train on \"text\" or \"tokens\" to generate from it");
  }
}

}  // namespace

Generator::~Generator() = default;

Generator::Generator(const std::filesystem::path& run, const std::string& tokenizer)
    : recipe_(recipe_of_run(run)) {
  check_has_text(recipe_, run);
  const c10::InferenceMode no_autograd;
  tokenizer_ = open_tokenizer(tokenizer.empty() ? recipe_.data.tokenizer : tokenizer);
  const UnitStage stage(build_gpt(recipe_.model, 0).units, 0);
  arena_ = std::make_unique<Arena>(stage.specs(), NumericTypes{at::kFloat, at::kFloat}, Group());
  load_model(run, *arena_);
  logits_ = std::make_unique<GptLogits>(recipe_.model, *arena_);
}

std::vector<std::int64_t> Generator::ids_of(std::string_view prompt) const {
  std::vector<std::int64_t> ids;
  if (prompt.empty()) ids.push_back(tokenizer_->separator());  // what a document begins behind
  for (const std::int32_t id : tokenizer_->encode(prompt)) ids.push_back(id);
  for (const std::int64_t id : ids) {
    if (id >= recipe_.model.vocab_size) {
      throw DataError("the prompt has token " + std::to_string(id) + ", the model knows " +
                      std::to_string(recipe_.model.vocab_size));
    }
  }
  return ids;
}

void Generator::generate(std::string_view prompt, const SamplingOptions& options,
                         const std::function<void(std::string_view)>& emit) const {
  const c10::InferenceMode no_autograd;
  std::vector<std::int64_t> ids = ids_of(prompt), shown = ids;
  std::erase(shown, tokenizer_->separator());
  const RandomStream stream(stream_key(options.seed, "generate"));
  GrowingText text(emit);
  text.grow_to(tokenizer_->decode(shown));
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::min(ids.size(), static_cast<std::size_t>(recipe_.model.seq_len));
    const at::Tensor window =
        at::tensor(at::ArrayRef<std::int64_t>(ids).slice(ids.size() - seen, seen), at::kLong);
    ids.push_back(
        draw(logits_->next(window), options, stream.uniform(static_cast<std::uint64_t>(i))));
    if (ids.back() == tokenizer_->separator()) continue;
    shown.push_back(ids.back());
    // All of it: a piece may change how the one before it reads.
    text.grow_to(tokenizer_->decode(shown));
  }
  text.end_with(tokenizer_->decode(shown));
}

}  // namespace troika
