#include <stdlib.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/version.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/ranks.h>
#include <troika/config/layout.h>
#include <troika/config/recipe_file.h>
#include <troika/observe/log.h>
#include <troika/rendezvous/world.h>
#include <troika/train/layouts.h>
#include <troika/train/trials.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Enough for several microbatches on each rank, few enough to be quick.
constexpr std::int64_t kUsualSamples = 16;

constexpr std::uint64_t kMostResultBytes = 1 << 28;

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  int ranks = 4;
  std::string layouts = "auto";
  std::int64_t steps = 3;
  bool json = false;
  // For the ranks that this command starts.
  std::string folder;
  std::size_t first = 0;
};

// A fresh folder among the temporary files, removed with all that is in it.
class WorkFolder {
 public:
  WorkFolder() {
    std::string name = std::filesystem::temp_directory_path() / "troika-verify-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw_storage_error("make a folder like", name, errno);
    path_ = name;
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TrialOptions trial_options(const Options& options) {
  return {options.steps, options.folder};
}

Recipe recipe_to_try(const Options& options, const Recipe& user) {
  const std::int64_t most = std::max<std::int64_t>(kUsualSamples, 2 * std::int64_t{options.ranks});
  return trial_recipe(user, most, trial_options(options));
}

// What the recipe itself asks for, where it asks for something that fits.
void add_own_layout(const Options& options, const Recipe& user, std::vector<TrialLayout>& layouts) {
  TrialLayout own{user.parallel, user.train.micro_batch_size};
  own.parallel.data = own.parallel.data.value_or(1);
  if (own.ranks() > 1 && own.ranks() <= options.ranks) layouts.push_back(std::move(own));
}

std::vector<Trial> trials_of(const Options& options, const Recipe& user) {
  const Recipe recipe = recipe_to_try(options, user);
  check_paths(recipe);
  std::vector<TrialLayout> layouts;
  if (options.layouts == "auto") {
    layouts = covering_layouts(recipe, options.ranks);
    add_own_layout(options, user, layouts);
  } else if (options.layouts == "all") {
    layouts = all_layouts(recipe, options.ranks);
  } else {
    layouts = parse_layouts(options.layouts, recipe);
  }
  return plan_trials(recipe, layouts);
}

int most_ranks(const std::vector<Trial>& trials) {
  return std::ranges::max_element(trials, {}, &Trial::ranks)->ranks;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return value == 0 ? "0" : text.data();
}

std::string word_of(const TrialResult& result) {
  if (!result.error.empty()) return "FAILED";
  if (!result.agrees()) return "DIFFERS";
  return result.with_twin ? "agrees, bits" : "agrees";
}

std::string table_line(const std::string& ranks, const std::string& result,
                       const std::string& difference, const std::string& of_bound,
                       const std::string& layout) {
  std::array<char, 80> columns{};
  std::snprintf(columns.data(), columns.size(), "%5s  %-12s  %10s  %8s  ", ranks.c_str(),
                result.c_str(), difference.c_str(), of_bound.c_str());
  return columns.data() + layout + "\n";
}

std::string line_of(const TrialResult& result) {
  const Comparison& found = result.with_reference;
  const bool ended = result.error.empty();
  std::string line = table_line(std::to_string(result.ranks), word_of(result),
                                ended ? short_number(found.difference) : "-",
                                ended ? short_number(found.of_tolerance) : "-", result.layout);
  if (!result.agrees()) line += std::string(7, ' ') + result.complaint() + "\n";
  return line;
}

std::filesystem::path results_path(const Options& options) {
  return std::filesystem::path(options.folder) / "results.jsonl";
}

void print_heading(const Options& options, const Recipe& user, const std::vector<Trial>& trials) {
  const std::int64_t samples = trials.front().recipe.train.global_batch_size;
  std::cout << trials.size() - 1 << (trials.size() == 2 ? " layout" : " layouts") << " of up to "
            << most_ranks(trials) << " ranks against one rank: " << options.steps
            << " steps each, fp64, SGD, " << samples << " samples a step";
  if (samples != user.train.global_batch_size) {
    std::cout << " (the recipe's " << user.train.global_batch_size << " would take longer)";
  }
  std::cout << "\n" << table_line("ranks", "result", "difference", "of bound", "layout");
  std::cout << std::flush;
}

// Written as soon as it is there, so that a rank that dies later loses nothing.
void keep(const Options& options, const TrialResult& result) {
  std::ofstream file(results_path(options), std::ios::app);
  file << to_json(result) << "\n" << std::flush;
  if (!file) throw_storage_error("write", results_path(options), errno);
  if (!options.json) std::cout << line_of(result) << std::flush;
}

std::vector<TrialResult> results_of(const Options& options) {
  if (!std::filesystem::exists(results_path(options))) return {};
  std::istringstream lines(read_file(results_path(options), kMostResultBytes));
  std::vector<TrialResult> results;
  for (std::string line; std::getline(lines, line);) results.push_back(trial_result_of(line));
  return results;
}

// The command line of a rank that goes on from trial `first`.
std::vector<std::string> rank_command(const Options& options, std::size_t first) {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "verify",
                                    options.file,
                                    "--ranks",
                                    std::to_string(options.ranks),
                                    "--layouts",
                                    options.layouts,
                                    "--steps",
                                    std::to_string(options.steps),
                                    "--folder",
                                    options.folder,
                                    "--first",
                                    std::to_string(first)};
  for (const std::string& one : options.overrides) {
    words.emplace_back("--set");
    words.push_back(one);
  }
  if (options.json) words.emplace_back("--json");
  return words;
}

LaunchResult run_job(const Options& options, const std::vector<Trial>& trials, std::size_t first) {
  LaunchOptions launch;
  launch.plan.ranks = launch.plan.ranks_per_node = most_ranks(trials);
  launch.command = rank_command(options, first);
  launch.version = kVersion;
  return run_ranks(launch);
}

// Jobs until every trial has a result: where one fails, the next goes on behind it. Returns the
// exit code of an interruption, else 0.
int run_jobs(const Options& options, const std::vector<Trial>& trials) {
  for (std::size_t first = 0; first < trials.size(); ++first) {
    const LaunchResult job = run_job(options, trials, first);
    if (job.exit_code >= 128) return report_end(job);
    first = results_of(options).size();
    if (!job.failure) return 0;
    if (first == 0 || first >= trials.size()) {
      throw Error(job.failure->code, job.failure->message, job.failure->hint);
    }
    TrialResult failed;
    failed.layout = trials[first].name;
    failed.ranks = trials[first].ranks;
    failed.error = job.failure->message;
    keep(options, failed);
  }
  return 0;
}

int conclude(const Options& options, const std::vector<TrialResult>& results) {
  const auto bad = std::ranges::count_if(results, [](const auto& one) { return !one.agrees(); });
  if (options.json) {
    nlohmann::ordered_json json{{"agree", bad == 0}, {"steps", options.steps}};
    for (const TrialResult& one : results) {
      json["layouts"].push_back(nlohmann::ordered_json::parse(to_json(one)));
    }
    std::cout << json.dump() << "\n";
  } else if (bad == 0) {
    std::cout << "all " << results.size() - 1 << " agree with one rank\n";
  } else {
    std::cout << bad << " of " << results.size() - 1 << " do not agree with one rank\n";
  }
  return bad == 0 ? 0 : static_cast<int>(ExitCode::kInternal);
}

int verify_by_jobs(Options options, const Recipe& user) {
  const WorkFolder folder;
  options.folder = folder.path().string();
  const std::vector<Trial> trials = trials_of(options, user);
  if (trials.size() < 2) {
    throw UsageError("there is no other layout than one rank to try",
                     "allow more ranks with --ranks N, or name some with --layouts");
  }
  if (const int code = run_jobs(options, trials); code != 0) return code;
  return conclude(options, results_of(options));
}

void try_as_rank(const Options& options, const World& world) {
  const Recipe user = load_recipe(options.file, options.overrides).recipe;
  const std::vector<Trial> trials = trials_of(options, user);
  // Nothing is printed for a recipe that cannot be trained at all.
  bool has_heading = options.json || options.first > 0;
  run_trials(trials, options.first, world, trial_options(options), [&](const TrialResult& result) {
    if (!std::exchange(has_heading, true)) print_heading(options, user, trials);
    keep(options, result);
  });
}

int verify(const Options& options) {
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  const auto world = world_from_environment(environment);
  if (!reporter.connected()) {
    if (world) {
      throw UsageError("troika verify starts its ranks itself",
                       "call it once, outside of " + world->source);
    }
    return verify_by_jobs(options, load_recipe(options.file, options.overrides).recipe);
  }
  return run_for_launcher(environment, reporter, [&] {
    try_as_rank(options, world.value());
    return std::string("{}");
  });
}

void add_flags(CLI::App& command, Options& options) {
  command.add_option("RECIPE", options.file, "The recipe")->required();
  command
      .add_option("--set", options.overrides,
                  "Override a key, any number of times: --set model.layers=4")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--ranks", options.ranks, "The most ranks that a layout may have")
      ->check(between(1, 64))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--layouts", options.layouts,
                  "auto: so many that any two settings meet; all; or a list such as "
                  "\"tensor=2; data=2,zero_stage=3\"")
      ->capture_default_str();
  command.add_option("--steps", options.steps, "Steps of training on each layout")
      ->check(between<std::int64_t>(1, 1000))
      ->type_name("K")
      ->capture_default_str();
  command.add_flag("--json", options.json, "One line of JSON at the end instead of a table");
  command.add_option("--folder", options.folder)->group("");
  command.add_option("--first", options.first)->group("");
}

}  // namespace

void add_verify_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify", "Train a recipe for a few steps on many layouts, and compare the numbers");
  auto options = std::make_shared<Options>();
  add_flags(*command, *options);
  command->footer(
      "Examples:\n"
      "  troika verify recipe.toml --ranks 8\n"
      "  troika verify recipe.toml --layouts \"tensor=2,pipeline=2; data=4,zero_stage=3\"\n"
      "  troika verify recipe.toml --layouts all --json\n\n"
      "Exit code 1: a layout does not agree with one rank.");
  command->callback([options, &action] { action = [options] { return verify(*options); }; });
}

}  // namespace troika
