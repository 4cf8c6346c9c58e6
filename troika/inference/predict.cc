#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/data/kind.h>
#include <troika/device/device.h>
#include <troika/inference/predict.h>
#include <troika/inference/prediction_writer.h>
#include <troika/loss/class_rows.h>
#include <troika/models/kind.h>
#include <troika/storage/object_store.h>
#include <troika/train/metric_fold.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tokenizer.h>
#include <troika/train/saved_model.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace troika {
namespace {

constexpr std::string_view kPrecisionKey = "train.precision";
// Where the library of a plug-in lies now.
constexpr std::string_view kLibraryKey = "model.library";

// What the run has kept of its data; empty where nothing was learned from them.
std::string description_of(const std::filesystem::path& run) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const std::filesystem::path path = data_path(run);
  return std::filesystem::exists(path) ? read_file(path, kMaxBytes) : "";
}

// The chosen samples of a run, microbatch by microbatch.
class Samples {
 public:
  Samples(const PredictOptions& options, const Recipe& recipe, SampleUse use)
      : options_(options),
        recipe_(recipe),
        dataset_(recipe.data.kind().open_for_model(
            recipe.data.options(), traits_of(recipe.model).sample,
            static_cast<std::uint64_t>(recipe.seed), {description_of(options.run), use})) {
    const bool held_out = dataset_->samples(Split::kHeldOut) > 0;
    const Side side = options.samples.side;
    split_ = side == Side::kTrain || (side == Side::kAuto && !held_out) ? Split::kTrain
                                                                        : Split::kHeldOut;
    count_ = dataset_->samples(split_);
    if (options.samples.limit) count_ = std::min(count_, *options.samples.limit);
    if (count_ == kUnlimited) {
      throw UsageError("data.kind = \"" + std::string(recipe.data.name()) + "\" never ends",
                       "say how many samples: --samples 1000");
    }
    if (count_ == 0 && side == Side::kTest) {
      throw DataError("there are no samples on the test side",
                      "data.split_column, test_files or test_fraction say which they are");
    }
    if (count_ == 0) {
      throw DataError("there are no samples on the " +
                          std::string(split_ == Split::kTrain ? "train" : "held-out") + " side",
                      "data.held_out_fraction says how many are held out; --side chooses");
    }
  }

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] const Dataset& data() const { return *dataset_; }

  // What the user should know of the data, once all samples are done.
  [[nodiscard]] std::vector<std::string> messages() const {
    std::vector<std::string> messages = dataset_->warnings();
    for (std::string& note : dataset_->notes()) messages.push_back(std::move(note));
    return messages;
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    const std::int64_t size = std::max<std::int64_t>(recipe_.train.micro_batch_size, kLeastChunk);
    for (std::int64_t first = 0; first < count_; first += size) {
      const IndexRange range{first, std::min(size, count_ - first)};
      for (const Microbatch& each : build_microbatches(*dataset_, split_, range, size, 0)) {
        visit(each);
      }
      if (options_.on_progress) options_.on_progress(range.first + range.count, count_);
    }
  }

 private:
  static constexpr std::int64_t kLeastChunk = 64;

  const PredictOptions& options_;
  const Recipe& recipe_;
  std::unique_ptr<Dataset> dataset_;
  Split split_ = Split::kHeldOut;
  std::int64_t count_ = 0;
};

// The key of "data.filter = [...]".
std::string key_of(const std::string& change) {
  return change.substr(0, change.find_first_of("= "));
}

// Throws UsageError naming a key that makes no difference here.
void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& each : overrides) {
    const std::string key = key_of(each);
    if (key == "data" || key.starts_with("data.") || key == kPrecisionKey) continue;
    if (key == kLibraryKey) continue;
    throw UsageError("--set " + key + ": the model is trained, and takes keys of [data], " +
                         std::string(kPrecisionKey) + " and " + std::string(kLibraryKey) + " alone",
                     "--device says what to compute on; `troika train` trains another model");
  }
}

TrainedModel model_for(const PredictOptions& options) {
  const std::vector<std::string>& overrides = options.samples.overrides;
  check_overrides(overrides);
  std::vector<std::string> model_overrides;
  std::ranges::copy_if(overrides, std::back_inserter(model_overrides),
                       [](const std::string& each) { return each.starts_with(kLibraryKey); });
  std::optional<Precision> precision;
  if (std::ranges::any_of(
          overrides, [](const std::string& each) { return each.starts_with(kPrecisionKey); })) {
    precision = recipe_of_trained(options.run, overrides).train.precision;
  }
  return load_model(options.run, options.device, options.which, precision, model_overrides);
}

void take_test_side(Recipe& recipe, const PredictOptions& options) {
  if (!options.samples.files.empty()) {
    throw UsageError("--side test is a part of the run's data, and --data means all of other files",
                     "leave one of them out");
  }
  const DataKind& kind = recipe.data.kind();
  const std::optional<Options> test = kind.on_test_side(recipe.data.options());
  if (!test) {
    throw UsageError("data.kind = " + quote(kind.name()) + " has no test side",
                     "tables have one; --data names other data");
  }
  recipe.data.options() = *test;
}

// The data of the run's recipe, changed as the user has asked.
Recipe recipe_for(const PredictOptions& options, const TrainedModel& model) {
  Recipe recipe = model.recipe();
  recipe.data = recipe_of_trained(options.run, options.samples.overrides).data;
  const DataKind& kind = recipe.data.kind();
  if (options.samples.side == Side::kTest) take_test_side(recipe, options);
  if (!options.samples.files.empty()) {
    std::vector<std::string> asked;
    for (const std::string& each : options.samples.overrides) asked.push_back(key_of(each));
    recipe.data.options() = kind.on_files(recipe.data.options(), options.samples.files, asked);
  }
  kind.check_ready(recipe.data.options(), Origins());
  return recipe;
}

// What the model says of some samples, column by column.
struct Predictions {
  std::vector<PredictedColumn> columns;
  std::vector<at::Tensor> rows;

  void add(PredictedColumn column, at::Tensor values) {
    if (std::ranges::count(columns, column.name, &PredictedColumn::name) > 0) {
      throw UsageError("two columns of the predictions would be called " + quote(column.name),
                       "[model.outputs] names the others: give that one another name");
    }
    column.type = values.scalar_type();
    columns.push_back(std::move(column));
    rows.push_back(std::move(values));
  }
  // Throws UsageError where a column of the data would be called as one of these, or is there
  // twice.
  void check_kept(std::span<const KeptColumn> kept) const {
    for (const KeptColumn& each : kept) {
      const bool taken = std::ranges::any_of(columns, [&](const PredictedColumn& column) {
        return std::ranges::count(column.titles, each.name) > 0;
      });
      if (!taken && std::ranges::count(kept, each.name, &KeptColumn::name) == 1) continue;
      throw UsageError("two columns of the predictions would be called " + quote(each.name),
                       "leave it out of --keep, or rename the column of the table");
    }
  }
};

// "probability_red", or the number of the output where the data have no name for it.
std::vector<std::string> titles_of(const std::string& what, std::int64_t outputs,
                                   std::span<const std::string> names) {
  std::vector<std::string> titles;
  for (std::int64_t k = 0; k < outputs; ++k) {
    const bool named = outputs == std::ssize(names);
    titles.push_back(what + "_" + (named ? names[static_cast<std::size_t>(k)] : std::to_string(k)));
  }
  return titles;
}

void add_outputs(Predictions& to, const at::Tensor& outputs, TargetMeaning meaning,
                 const std::vector<std::string>& names) {
  const std::int64_t count = outputs.size(1);
  const auto add = [&](const std::string& what, const at::Tensor& values) {
    to.add({.name = what, .titles = titles_of(what, count, names)}, values);
  };
  switch (meaning) {
    case TargetMeaning::kClass: {
      PredictedColumn column{.name = "class", .titles = {"class"}};
      if (count == std::ssize(names)) column.texts = names;
      to.add(std::move(column), outputs.argmax(1));
      return add("probability", outputs.softmax(1));
    }
    case TargetMeaning::kAnswers:
      return add("probability", outputs.sigmoid());
    case TargetMeaning::kValues:
      return add("value", outputs.is_floating_point() ? outputs : outputs.to(at::kDouble));
  }
}

// Adds the `top` likeliest classes, the first of equal ones first, and their probabilities.
void add_top(Predictions& to, const at::Tensor& outputs, std::int64_t top,
             const std::vector<std::string>& names) {
  const auto [sorted, classes] = outputs.softmax(1).sort(/*stable=*/true, 1, /*descending=*/true);
  for (std::int64_t k = 0; k < std::min(top, outputs.size(1)); ++k) {
    const std::string place = "_" + std::to_string(k + 1);
    PredictedColumn column{.name = "class" + place, .titles = {"class" + place}};
    if (outputs.size(1) == std::ssize(names)) column.texts = names;
    to.add(std::move(column), classes.select(1, k).contiguous());
    to.add({.name = "probability" + place, .titles = {"probability" + place}},
           sorted.narrow(1, k, 1).contiguous());
  }
}

// Adds the likeliest class of each target of a sample, where it has several.
void add_classes(Predictions& to, const at::Tensor& outputs, const TensorSpec& target) {
  std::vector<std::int64_t> shape = target.shape;
  shape.insert(shape.begin(), outputs.size(0));
  const at::Tensor classes = classes_last(outputs, shape).argmax(-1).reshape({shape[0], -1});
  to.add({.name = "class", .titles = titles_of("class", classes.size(1), {})}, classes);
}

// Adds an output that the loss does not take, under its own name.
void add_other(Predictions& to, const std::string& name, const at::Tensor& output) {
  const at::Tensor numbers = output.reshape({output.size(0), -1});
  const bool one = numbers.size(1) == 1;
  PredictedColumn column{.name = name,
                         .titles = one ? std::vector{name} : titles_of(name, numbers.size(1), {})};
  if (numbers.is_floating_point()) return to.add(std::move(column), numbers);
  to.add(std::move(column), one ? numbers.flatten().to(at::kLong) : numbers.to(at::kDouble));
}

// Throws UsageError where the predictions would take the place of a file that they are made from,
// by whatever name or link.
void check_is_no_source(const std::filesystem::path& path, const PredictOptions& options,
                        const Dataset& data) {
  std::error_code none;  // one of them is not there
  if (!std::filesystem::exists(path, none)) return;
  const auto refuse = [&](const std::filesystem::path& source, const std::string& what) {
    if (is_remote(source.native()) || !std::filesystem::equivalent(path, source, none)) return;
    throw UsageError("--out " + shown_path(path) + " is " + what + " " + shown_path(source) +
                         ", which it would replace",
                     "write the predictions to another file");
  };
  for (const DataFile& file : data.files()) refuse(file.path, "the data file");
  refuse(model_path(options.run), "the model");
  refuse(best_model_path(options.run), "the best model");
}

// What the first column of predictions is called.
std::string name_of_ids(const Dataset& data) {
  if (!data.sample_names().empty()) return "image";
  return data.facts().rows > 0 ? "row" : "sample";
}

}  // namespace

Predicted predict(const PredictOptions& options, const std::filesystem::path& path) {
  check_prediction_path(path);
  const TrainedModel model = model_for(options);
  model.check_gives_outputs();
  const Recipe recipe = recipe_for(options, model);
  const Samples samples(options, recipe, SampleUse::kPredict);
  check_is_no_source(path, options, samples.data());
  const LossKind& loss = recipe.model.loss.kind();
  const ModelTraits traits = traits_of(recipe.model);
  const std::vector<TensorSpec>& outputs = traits.output_tensors;
  const TensorSpec& target = traits.sample.target();
  const std::vector<std::string> names = samples.data().target_names();
  const bool has_classes = loss.target_meaning() == TargetMeaning::kClass && target.shape.empty() &&
                           loss.takes_outputs();
  if (options.top > 0 && !has_classes) {
    throw UsageError("--top: the model does not give one class a sample",
                     "loss = \"cross_entropy\" has classes");
  }
  const std::vector<ValueScale> scales = samples.data().target_scales();
  const std::string id = name_of_ids(samples.data());
  const std::unique_ptr<KeptColumns> kept =
      options.keep.empty() ? nullptr : samples.data().open_columns(options.keep);
  const std::span<const KeptColumn> kept_columns =
      kept ? kept->columns() : std::span<const KeptColumn>();
  std::unique_ptr<PredictionWriter> writer;
  samples.for_each([&](const Microbatch& each) {
    Predictions predictions;
    predictions.add({.name = id, .titles = {id}}, each.sample_ids);
    if (!writer) predictions.columns.front().texts = samples.data().sample_names();
    const std::vector<at::Tensor> given = model.judge(each).outputs;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const at::Tensor values = to_host(given[i]);
      if (i > 0 || !loss.takes_outputs()) {
        add_other(predictions, outputs[i].name, values);
      } else if (loss.target_meaning() == TargetMeaning::kClass && !target.shape.empty()) {
        add_classes(predictions, values, target);
      } else {
        const at::Tensor numbers = values.reshape({values.size(0), -1});
        if (options.top > 0) {
          add_top(predictions, numbers, options.top, names);
          continue;
        }
        add_outputs(predictions, in_own_unit(numbers, scales), loss.target_meaning(), names);
      }
    }
    if (!writer) {
      predictions.check_kept(kept_columns);
      writer = create_predictions(path, predictions.columns, samples.count(), kept_columns);
    }
    writer->write(predictions.rows,
                  kept ? kept->values(each.sample_ids) : std::vector<KeptValues>());
  });
  writer->commit();
  return {samples.count(), samples.messages()};
}

Evaluated evaluate(const PredictOptions& options) {
  const TrainedModel model = model_for(options);
  const Recipe recipe = recipe_for(options, model);
  const Samples samples(options, recipe, SampleUse::kEvaluate);
  const std::string target = traits_of(recipe.model).sample.target().name;
  MetricFold metrics(recipe, samples.data());
  LossTerms loss;
  samples.for_each([&](const Microbatch& each) {
    TrainedModel::Judged judged = model.judge(each);
    judged.loss.weigh_equally(each.valid);
    loss.add(judged.loss);
    if (judged.outputs.empty()) return;
    const at::Tensor& outputs = judged.outputs.front();
    metrics.add(outputs, to_device(each.tensors.at(target), outputs.device()));
  });
  Evaluated evaluated;
  evaluated.samples = samples.count();
  evaluated.warnings = samples.messages();
  const double weight = loss.read_weight();
  if (weight == 0) throw DataError("no target of these samples counts");
  evaluated.loss = loss.read_sum() / weight;
  if (const auto bytes = samples.data().bytes_per_token()) {
    evaluated.bits_per_byte = evaluated.loss / std::log(2.0) / *bytes;
  }
  evaluated.metrics =
      metrics.values(Group(), evaluated.loss, {"metrics", Deadline::in(Seconds(60))});
  for (const std::string& word : recipe.train.metrics) {
    if (std::ranges::count(evaluated.metrics, word, &NamedValue::name) > 0) continue;
    evaluated.warnings.push_back(undefined_metric(word));
  }
  return evaluated;
}

}  // namespace troika
