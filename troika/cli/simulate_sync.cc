// The command `troika simulate sync`.
#include <ATen/Parallel.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/recipe_flags.h>
#include <troika/cli/simulate.h>
#include <troika/plan/useful_threads.h>
#include <troika/recipe/recipe_file.h>
#include <troika/rendezvous/environment.h>
#include <troika/simulate/passes.h>
#include <troika/simulate/report.h>
#include <troika/simulate/speeds.h>
#include <troika/simulate/stays.h>
#include <troika/simulate/sync_simulation.h>
#include <troika/train/run.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr int kMostWorkers = 4096;
constexpr double kLongestPass = 1e6;  // s
constexpr double kMostUnevenness = 2;

struct SimulateSyncArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> syncs;
  int workers = 0;
  std::vector<double> joins;        // s
  std::vector<std::string> leaves;  // "WORKER@SECONDS"
  std::string speeds = "constant(1)";
  std::string link;
  double pass_seconds = 0;  // 0: measured
  double unevenness = 0.1;
  std::uint64_t seed = 0;
  std::string plot;
  bool json = false;
};

struct Setting {
  std::string name;
  Recipe recipe;  // for one rank
};

// "kind=server staleness=any" as arguments of --set.
std::vector<std::string> overrides_of(const std::string& sync) {
  std::vector<std::string> overrides;
  std::size_t begin = 0;
  while ((begin = sync.find_first_not_of(' ', begin)) != std::string::npos) {
    const std::size_t end = std::min(sync.find(' ', begin), sync.size());
    const std::string word = sync.substr(begin, end - begin);
    if (word.find('=') == std::string::npos || word.front() == '=') {
      throw UsageError("--sync: " + quote(word, 40) + " is not KEY=VALUE",
                       "write keys of [sync]: --sync \"kind=server staleness=any\"");
    }
    overrides.push_back("sync." + word);
    begin = end;
  }
  // Keys of the default kind, which has none, would do nothing.
  if (std::ranges::none_of(
          overrides, [](const std::string& each) { return each.starts_with("sync.kind="); })) {
    throw UsageError("--sync: " + quote(sync, 40) + " names no kind",
                     "it takes the place of all of [sync]: --sync \"kind=server staleness=any\"");
  }
  return overrides;
}

// A worker's recipe, whatever it says of [sync] and of the number of ranks.
Recipe resolved_for_worker(LoadedRecipe loaded, const SimulatedJob& job) {
  check_simulated(loaded.recipe, job);
  loaded.recipe.parallel.data.reset();
  loaded.recipe.train.device = "cpu";
  loaded.recipe.debug.sample_seconds = 0;  // time is virtual
  return resolve_for_run(loaded.recipe, 1, loaded.origins);
}

std::vector<Setting> settings_of(const SimulateSyncArguments& options, const SimulatedJob& job) {
  const KnownRanks ranks(options.workers);
  LoadedRecipe own = load_recipe(options.file, options.overrides, ranks, EngineUse::kNotUsed);
  print_warnings(own.warnings);
  std::vector<Setting> settings;
  for (const std::string& sync : options.syncs) {
    // Each takes the place of the whole section.
    Recipe bare = own.recipe;
    bare.sync = {};
    LoadedRecipe loaded =
        parse_recipe(to_toml(bare), options.file, overrides_of(sync), ranks, EngineUse::kNotUsed);
    settings.push_back({sync, resolved_for_worker(std::move(loaded), job)});
  }
  if (settings.empty()) {
    std::string name = "kind=" + std::string(own.recipe.sync.name());
    settings.push_back({std::move(name), resolved_for_worker(std::move(own), job)});
  }
  return settings;
}

// Six digits, so that what is shown and what is computed with are the same.
double rounded(double seconds) {
  return std::strtod(std::to_string(seconds).c_str(), nullptr);
}

void check_plot(const std::string& plot) {
  if (!plot.empty() && std::filesystem::is_directory(plot)) {
    throw UsageError("--plot: " + quote(plot) + " is a folder",
                     "name the file in it: --plot " + plot + "/losses.svg");
  }
}

int simulate(const SimulateSyncArguments& options) {
  check_plot(options.plot);
  SyncReport report;
  report.seed = options.seed;
  report.speeds = options.speeds;
  report.link = options.link;
  report.job.unevenness = options.unevenness;
  report.job.seed = options.seed;
  report.job.stays = worker_stays(options.workers, options.joins, options.leaves);
  const int workers = options.workers + static_cast<int>(options.joins.size());
  report.job.speeds = draw_speeds(parse_speeds(options.speeds), workers, options.seed);
  if (!options.link.empty()) report.job.link = parse_link(options.link);
  const std::vector<Setting> settings = settings_of(options, report.job);
  const Recipe& first = settings.front().recipe;
  if (!Environment::of_process().has("OMP_NUM_THREADS")) {
    at::set_num_threads(useful_threads(first, at::get_num_threads()));
  }
  report.job.pass_seconds = options.pass_seconds;
  Passes passes(first);
  if (report.job.pass_seconds == 0) {
    const std::int64_t part = first.train.global_batch_size / options.workers;
    report.job.pass_seconds = std::max(1e-6, rounded(passes.measure(part)));
    std::fprintf(stderr,
                 "troika: a pass of %lld samples takes %s s here: --pass-seconds %s makes the "
                 "same numbers come again\n",
                 static_cast<long long>(part), std::to_string(report.job.pass_seconds).c_str(),
                 std::to_string(report.job.pass_seconds).c_str());
  }
  for (const Setting& setting : settings) {
    report.settings.push_back({setting.name, simulate_sync(setting.recipe, report.job, passes)});
  }
  if (!options.plot.empty()) write_file_atomically(options.plot, to_svg(report));
  std::cout << (options.json ? to_json(report) + "\n" : to_text(report)) << std::flush;
  return 0;
}

}  // namespace

void add_simulate_sync(CLI::App& simulate_app, Action& action) {
  CLI::App* command = simulate_app.add_subcommand(
      "sync",
      "Train with [sync] settings on workers of given speeds behind given links: real "
      "gradients, virtual time");
  auto options = std::make_shared<SimulateSyncArguments>();
  add_recipe_flags(*command, options->file, options->overrides);
  command
      ->add_option("--workers", options->workers,
                   "Workers that it starts with, each an island of its own")
      ->check(between(1, kMostWorkers))
      ->required();
  command
      ->add_option("--join", options->joins,
                   "A worker joins at that virtual second, any number of times; only with kind = "
                   "\"server\"")
      ->type_name("SECONDS")
      ->allow_extra_args(false);
  command
      ->add_option("--leave", options->leaves,
                   "A worker leaves behind its pass of that second, as on Ctrl-C: --leave 1@600. "
                   "Workers count from 0, those that join behind the others")
      ->type_name("WORKER@SECONDS")
      ->allow_extra_args(false);
  command
      ->add_option("--sync", options->syncs,
                   "Keys of [sync] that take the place of the section, any number of times, to "
                   "compare: --sync \"kind=server staleness=any\"")
      ->type_name("KEYS")
      ->allow_extra_args(false);
  command
      ->add_option("--speeds", options->speeds,
                   "A speed for each worker, which keeps it: constant(c), uniform(a, b), "
                   "lognormal(median, sigma), list(a, b, ...). At speed 2 a pass takes half as "
                   "long as at 1")
      ->type_name("RULE")
      ->capture_default_str();
  command
      ->add_option("--link", options->link,
                   "What each worker and each server sends and receives a second, and the latency "
                   "of a message one way: \"200Mbit/s 5ms\". Left out: neither takes time")
      ->type_name("LINK");
  command
      ->add_option("--pass-seconds", options->pass_seconds,
                   "Time of global_batch_size / workers samples forward and backward at speed 1; "
                   "measured here where it is not given")
      ->type_name("SECONDS")
      ->check(between(1e-9, kLongestPass));
  command
      ->add_option("--unevenness", options->unevenness,
                   "How unequally transfers at the same time share the link of a server: each "
                   "draws a weight, lognormal(1, UNEVENNESS). 0: equally")
      ->check(between(0., kMostUnevenness))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the drawn speeds and weights")
      ->capture_default_str();
  command
      ->add_option("--plot", options->plot, "Draw the losses over the virtual time, as an SVG file")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "One line of JSON, for machines");
  command->footer(
      "Examples:\n"
      "  troika simulate sync recipe.toml --workers 32 --speeds \"lognormal(1, 0.5)\" \\\n"
      "    --link \"200Mbit/s 5ms\"\n"
      "  troika simulate sync recipe.toml --workers 8 --pass-seconds 0.2 --plot losses.svg \\\n"
      "    --sync kind=all_reduce --sync \"kind=server staleness=any\" --sync \"kind=local "
      "every_steps=10\"");
  command->callback([options, &action] { action = [options] { return simulate(*options); }; });
}

}  // namespace troika
