#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/models/gpt/gpt.h>
#include <troika/train/generate.h>
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
  const auto* place = std::upper_bound(data, data + kept - 1, uniform * data[kept - 1]);
  return ids[place - data].item<std::int64_t>();
}

}  // namespace

Generator::~Generator() = default;

Generator::Generator(const std::filesystem::path& run) : recipe_(recipe_of_run(run)) {
  if (recipe_.model.kind != ModelKind::kGpt) {
    throw UsageError("the model in '" + run.string() + "' is no gpt: it cannot generate text");
  }
  const c10::InferenceMode no_autograd;
  tokenizer_ = open_tokenizer(recipe_.data.tokenizer);
  const UnitStage stage(build_gpt(recipe_.model, 0).units, 0);
  arena_ = std::make_unique<Arena>(stage.specs(), NumericTypes{at::kFloat, at::kFloat}, Group());
  load_model(run, *arena_);
  logits_ = std::make_unique<GptLogits>(recipe_.model, *arena_);
}

void Generator::generate(std::string_view prompt, const SamplingOptions& options,
                         const std::function<void(std::string_view)>& emit) const {
  const c10::InferenceMode no_autograd;
  std::vector<std::int64_t> ids;
  for (const std::int32_t id : tokenizer_->encode(prompt)) ids.push_back(id);
  if (ids.empty()) throw UsageError("the prompt is empty");
  for (const std::int64_t id : ids) {
    if (id >= recipe_.model.vocab_size) {
      throw DataError("the prompt has token " + std::to_string(id) + ", the model knows " +
                      std::to_string(recipe_.model.vocab_size));
    }
  }
  const RandomStream stream(stream_key(options.seed, "generate"));
  std::string text = tokenizer_->decode(ids);
  emit(text);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::min(ids.size(), static_cast<std::size_t>(recipe_.model.seq_len));
    const at::Tensor window =
        at::tensor(at::ArrayRef<std::int64_t>(ids).slice(ids.size() - seen, seen), at::kLong);
    ids.push_back(
        draw(logits_->next(window), options, stream.uniform(static_cast<std::uint64_t>(i))));
    // A piece may change how those before it read, so the text grows by what is new at its end.
    const std::string longer = tokenizer_->decode(ids);
    if (longer.size() > text.size()) emit(std::string_view(longer).substr(text.size()));
    text = longer;
  }
}

}  // namespace troika
