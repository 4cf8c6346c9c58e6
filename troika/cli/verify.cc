// The command `troika verify`: a job of its own for each trial, or the ranks of one job.
#include <troika/base/error.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/ranks.h>
#include <troika/cli/recipe_flags.h>
#include <troika/cli/verify_folder.h>
#include <troika/cli/verify_jobs.h>
#include <troika/cli/verify_report.h>
#include <troika/recipe/recipe_file.h>
#include <troika/rendezvous/world.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// At once, so that a rank that dies later loses nothing.
void record_result(const VerifyOptions& options, const TrialResult& result) {
  TrialResults(options.folder).add(result);
  if (!options.json) std::cout << line_of(result) << std::flush;
}

int verify_by_jobs(VerifyOptions options, const Recipe& user) {
  const VerifyFolder folder;
  options.folder = folder.path().string();
  const VerifyPlan plan = plan_of(options, user);
  if (plan.trials.size() < 2) {
    throw UsageError("there is no other layout than one rank to try",
                     "allow more ranks with --ranks N, or name some with --layouts");
  }
  const int code = run_jobs(options, plan.trials,
                            [&](const TrialResult& result) { record_result(options, result); });
  if (code != 0) return code;
  const std::vector<TrialResult> results = TrialResults(folder.path()).read();
  std::cout << (options.json ? to_json(options, plan, results) + "\n" : summary_of(results));
  return all_agree(results) ? 0 : static_cast<int>(ExitCode::kInternal);
}

void verify_as_rank(const VerifyOptions& options, const World& world) {
  const Recipe user = load_recipe(options.file, options.overrides).recipe;
  const VerifyPlan plan = plan_of(options, user);
  // Nothing is printed for a recipe that cannot be trained at all.
  bool has_heading = options.json || options.first > 0;
  const auto done = [&](const TrialResult& result) {
    if (!std::exchange(has_heading, true)) {
      std::cout << heading_of(options, user, plan) << std::flush;
    }
    record_result(options, result);
  };
  run_trials(plan.trials, options.first, world, options.trial_options(), done);
}

int verify(const VerifyOptions& options) {
  const Environment environment = Environment::of_process();
  Reporter reporter(environment);
  const auto world = world_from_environment(environment);
  if (!reporter.connected()) {
    if (world) {
      throw UsageError("troika verify starts its ranks itself",
                       "call it once, outside of " + world->source);
    }
    const LoadedRecipe loaded = load_recipe(options.file, options.overrides);
    print_warnings(loaded.warnings);
    return verify_by_jobs(options, loaded.recipe);
  }
  return run_for_launcher(environment, reporter, [&] {
    verify_as_rank(options, world.value());
    return std::string("{}");
  });
}

void add_flags(CLI::App& command, VerifyOptions& options) {
  add_recipe_flags(command, options.file, options.overrides);
  command
      .add_option("--ranks", options.ranks,
                  "The most ranks of a layout that auto, all or data=auto makes")
      ->check(between(1, kMostTrialRanks))
      ->capture_default_str();
  command
      .add_option("--layouts", options.layouts,
                  "auto: enough to cover every pair of settings; all; or a list such as "
                  "\"tensor=2; data=2,zero_stage=3\"")
      ->capture_default_str();
  command.add_option("--steps", options.steps, "Steps of training on each layout")
      ->check(between<std::int64_t>(1, 1000))
      ->capture_default_str();
  command.add_flag("--json", options.json, "One line of JSON at the end instead of a table");
  command.add_option("--folder", options.folder)->group("");
  command.add_option("--first", options.first)->group("");
}

}  // namespace

void add_verify_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify", "Train a recipe for a few steps on many layouts, and compare the numbers");
  auto options = std::make_shared<VerifyOptions>();
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
