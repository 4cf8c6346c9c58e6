// `troika predict` and `troika evaluate`: what a trained model says of samples.
#include <troika/base/text.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/inference/predict.h>
#include <troika/observe/log.h>
#include <troika/observe/progress.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace troika {
namespace {

struct PredictArguments {
  std::string run, device = "cpu", side = "auto", out;
  std::vector<std::string> overrides, files, keep;
  std::int64_t samples = 0, top = 0;
  bool best = false, json = false;
};

PredictOptions options_of(const PredictArguments& arguments) {
  PredictOptions options;
  options.run = arguments.run;
  options.device = arguments.device;
  options.which = arguments.best ? SavedModel::kBest : SavedModel::kLast;
  options.samples.overrides = arguments.overrides;
  options.samples.files = arguments.files;
  options.samples.side = arguments.side == "train"      ? Side::kTrain
                         : arguments.side == "held_out" ? Side::kHeldOut
                         : arguments.side == "test"     ? Side::kTest
                                                        : Side::kAuto;
  options.keep = arguments.keep;
  options.top = arguments.top;
  if (arguments.samples > 0) options.samples.limit = arguments.samples;
  return options;
}

// Draws as samples are done.
class Shown {
 public:
  explicit Shown(std::string what) : what_(std::move(what)) {}
  void operator()(std::int64_t done, std::int64_t all) {
    if (!line_) line_.emplace(std::cerr, what_, "samples", all, progress_options(fileno(stderr)));
    line_->add(done - done_);
    done_ = done;
    if (done == all) line_->finish();
  }

 private:
  std::string what_;
  std::optional<CountProgress> line_;
  std::int64_t done_ = 0;
};

void show(const std::vector<std::string>& warnings) {
  configure_log({});
  for (const std::string& each : warnings) log_warning(each);
}

int predict_and_say(const PredictArguments& arguments) {
  PredictOptions options = options_of(arguments);
  Shown shown("predicting");
  options.on_progress = [&](std::int64_t done, std::int64_t all) { shown(done, all); };
  const Predicted predicted = predict(options, arguments.out);
  show(predicted.warnings);
  std::cout << plural(predicted.rows, "row") << ": " << arguments.out << "\n";
  return 0;
}

int evaluate_and_say(const PredictArguments& arguments) {
  PredictOptions options = options_of(arguments);
  Shown shown("evaluating");
  options.on_progress = [&](std::int64_t done, std::int64_t all) { shown(done, all); };
  const Evaluated evaluated = evaluate(options);
  show(evaluated.warnings);
  if (arguments.json) {
    nlohmann::ordered_json json{{"samples", evaluated.samples}, {"loss", evaluated.loss}};
    if (evaluated.bits_per_byte) json["bits_per_byte"] = *evaluated.bits_per_byte;
    for (const NamedValue& each : evaluated.metrics) json[each.name] = each.value;
    std::cout << json.dump() << "\n";
    return 0;
  }
  std::cout << "loss " << evaluated.loss;
  if (evaluated.bits_per_byte) std::cout << ", bits per byte " << *evaluated.bits_per_byte;
  for (const NamedValue& each : evaluated.metrics)
    std::cout << ", " << each.name << " " << each.value;
  std::cout << " over " << evaluated.samples << " samples\n";
  return 0;
}

void add_options(CLI::App& command, PredictArguments& arguments) {
  command.add_option("RUN", arguments.run, "Run folder, as `troika train` names it")->required();
  command
      .add_option("--set", arguments.overrides,
                  "Other data than the run's: KEY=VALUE of [data], any number of times; or "
                  "train.precision=fp32")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      .add_option(
          "--data", arguments.files,
          "Other data than the run's, all of them: files of text or tables, folders or globs, any "
          "number of times, or a folder of images")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      .add_option("--side", arguments.side,
                  "Which samples: held_out, train, test of a table that says which these are, or "
                  "auto: held-out ones where there are any")
      ->check(CLI::IsMember({"auto", "train", "held_out", "test"}))
      ->capture_default_str();
  command.add_option("--samples", arguments.samples, "At most so many of them; 0: all")
      ->check(at_least(std::int64_t{0}))
      ->capture_default_str();
  command.add_flag("--best", arguments.best, "The best model by train.best_metric, not the last");
  command.add_option("--device", arguments.device, "What to compute on: auto, cpu, cuda or cuda:1")
      ->type_name("DEVICE")
      ->capture_default_str();
}

}  // namespace

void add_predict_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("predict", "Write what a trained model says of samples");
  auto arguments = std::make_shared<PredictArguments>();
  add_options(*command, *arguments);
  command->add_option("--out", arguments->out, "File to write: .csv, .parquet or .safetensors")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--keep", arguments->keep,
                   "Columns of a table that the file has beside the predictions: id,name")
      ->type_name("COLUMNS")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--top", arguments->top,
                   "So many of the likeliest classes in place of all probabilities; 0: all")
      ->check(at_least(std::int64_t{0}))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  troika predict runs/digits --out predictions.csv\n"
      "  troika predict runs/payments --data new.parquet --keep id --out predictions.parquet\n"
      "  troika predict runs/pets --data photos --out predictions.csv\n"
      "  troika predict runs/digits --side train --samples 100 --out first.safetensors");
  command->callback(
      [arguments, &action] { action = [arguments] { return predict_and_say(*arguments); }; });
}

void add_evaluate_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("evaluate", "Print loss and metrics of a trained model on samples");
  auto arguments = std::make_shared<PredictArguments>();
  add_options(*command, *arguments);
  command->add_flag("--json", arguments->json, "Print one line of JSON");
  command->footer(
      "Examples:\n"
      "  troika evaluate runs/digits\n"
      "  troika evaluate runs/quickstart --data other.txt\n"
      "  troika evaluate runs/payments --data new.parquet\n"
      "  troika evaluate runs/digits --best --json");
  command->callback(
      [arguments, &action] { action = [arguments] { return evaluate_and_say(*arguments); }; });
}

}  // namespace troika
