#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/file.h>
#include <troika/base/random.h>
#include <troika/base/text.h>
#include <troika/data/chat/encode_spans.h>
#include <troika/device/choose.h>
#include <troika/device/device.h>
#include <troika/device/device_error.h>
#include <troika/device/numerics.h>
#include <troika/inference/generate.h>
#include <troika/inference/output_language_model.h>
#include <troika/train/adapted_model.h>
#include <troika/train/precision.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
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

void check_is_finished(const std::filesystem::path& run) {
  const std::filesystem::path model = model_path(run);
  if (std::filesystem::exists(model)) return;
  throw DataError(
      "the run in " + shown_path(run) + " has no model yet: " + shown_path(model) + " is missing",
      "a run saves its model when it ends; train it to the end, or with fewer steps");
}

// A run may have been trained elsewhere.
at::Device device_of(const Recipe& recipe, const std::string& asked) {
  if (!asked.empty()) return choose_device(asked, {}, "--device");
  try {
    return choose_device(recipe.train.device, {}, "the run's train.device");
  } catch (const UsageError& error) {
    throw UsageError(error.what(), "--device cpu does without, --device auto takes what is there");
  }
}

}  // namespace

Generator::~Generator() = default;

Generator::Generator(const std::filesystem::path& run, const std::string& tokenizer,
                     const std::string& device)
    : recipe_(recipe_of_trained(run)) {
  device_ = device_of(recipe_, device);  // before LibTorch is used
  apply({.tf32 = recipe_.train.tf32}, device_);
  const ModelOptions& model = recipe_.model;
  const ModelTraits traits = traits_of(model);
  const std::string whose = "the model in " + shown_path(run);
  if (gives_logits_of_tokens(traits)) {
    check_is_finished(run);
    model_ = std::make_unique<OutputLanguageModel>(run, device_.str());
  } else if (!open_own(merged_recipe(recipe_).model)) {
    throw UsageError(whose + " is of kind = \"" + std::string(model.name()) +
                     "\": it cannot generate text");
  }
  const auto own_tokenizer = recipe_.data.kind().tokenizer(recipe_.data.options());
  if (!own_tokenizer) {
    throw UsageError(whose + " was trained on data.kind = \"" + std::string(recipe_.data.name()) +
                         "\": its tokens stand for no text",
                     "train on \"text\", \"tokens\" or \"chat\" to generate from it");
  }
  check_is_finished(run);
  tokenizer_name_ = tokenizer.empty() ? *own_tokenizer : tokenizer;
  tokenizer_ = open_tokenizer(tokenizer_name_);
  tokens_ = traits.sample.input();
  if (!arena_) return;
  const c10::InferenceMode no_autograd;
  if (std::filesystem::exists(run / "checkpoints")) warn_of_older_model(run);
  load_trained(recipe_, model_path(run), *arena_);
}

bool Generator::open_own(const ModelOptions& model) {
  const c10::InferenceMode no_autograd;
  const UnitStage stage(build_model(model, 0).units, 0);
  arena_ = std::make_unique<Arena>(stage.specs(), NumericTypes{at::kFloat, at::kFloat}, Group(),
                                   device_);
  model_ = model.kind().language_model(model.options(), *arena_);
  return model_ != nullptr;
}

std::vector<std::int64_t> Generator::ids_of(std::string_view prompt) const {
  std::vector<std::int64_t> ids;
  if (prompt.empty()) ids.push_back(tokenizer_->separator());  // what a document begins behind
  for (const std::int32_t id : tokenizer_->encode(prompt)) ids.push_back(id);
  check_known(ids);
  return ids;
}

void Generator::check_known(std::span<const std::int64_t> ids) const {
  for (const std::int64_t id : ids) {
    if (id >= tokens_.range) {
      throw DataError("the prompt has token " + std::to_string(id) + ", the model knows " +
                      std::to_string(tokens_.range));
    }
  }
}

// Without its beginning, a question has no turns.
void Generator::check_fits(std::span<const std::int64_t> question) const {
  const std::int64_t most = tokens_.shape.front();
  if (std::ssize(question) <= most) return;
  throw DataError("the question has " + std::to_string(question.size()) +
                      " tokens with its template, the model sees " + std::to_string(most),
                  "ask a shorter one; model.seq_len of the training says what a model sees");
}

void Generator::generate(std::string_view prompt, const SamplingOptions& options,
                         const std::function<void(std::string_view)>& emit) const {
  go_on({ids_of(prompt), true, {}}, options, emit);
}

void Generator::answer(ChatTemplate chat_template, std::string_view says,
                       const SamplingOptions& options,
                       const std::function<void(std::string_view)>& emit) const {
  check_chat_tokenizer(chat_template, *tokenizer_, tokenizer_name_);
  const ChatMessage message{"user", std::string(says)};
  const ChatText chat = render_prompt(chat_template, {&message, 1});
  const EncodedSpans encoded = encode_spans(*tokenizer_, chat.text, chat.spans);
  Beginning beginning{{encoded.ids.begin(), encoded.ids.end()}, false, {}};
  for (const std::string_view end : ends_of_turn(chat_template)) {
    if (const auto token = tokenizer_->token(end)) beginning.ends.push_back(token->id);
  }
  check_known(beginning.ids);
  check_fits(beginning.ids);
  go_on(std::move(beginning), options, emit);
}

void Generator::go_on(Beginning beginning, const SamplingOptions& options,
                      const std::function<void(std::string_view)>& emit) const {
  try {
    draw_tokens(std::move(beginning), options, emit);
  } catch (const c10::Error& error) {
    const auto shown = device_error(error, device_);
    if (!shown) throw;
    throw_failure(failure_of(*shown));
  }
}

void Generator::draw_tokens(Beginning beginning, const SamplingOptions& options,
                            const std::function<void(std::string_view)>& emit) const {
  const c10::InferenceMode no_autograd;
  std::vector<std::int64_t> ids = std::move(beginning.ids), shown;
  if (beginning.is_shown) shown = ids;
  std::erase(shown, tokenizer_->separator());
  const RandomStream stream(stream_key(options.seed, "generate"));
  GrowingText text(emit);
  text.grow_to(tokenizer_->decode(shown));
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::min(ids.size(), static_cast<std::size_t>(tokens_.shape.front()));
    const at::Tensor window =
        at::tensor(at::ArrayRef<std::int64_t>(ids).slice(ids.size() - seen, seen), at::kLong);
    ids.push_back(draw(to_host(model_->next(to_device(window, device_))), options,
                       stream.uniform(static_cast<std::uint64_t>(i))));
    if (std::ranges::find(beginning.ends, ids.back()) != beginning.ends.end()) break;
    if (ids.back() == tokenizer_->separator()) continue;
    shown.push_back(ids.back());
    // All of it: a piece may change how the one before it reads.
    text.grow_to(tokenizer_->decode(shown));
  }
  text.end_with(tokenizer_->decode(shown));
}

}  // namespace troika
