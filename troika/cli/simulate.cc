#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/simulate.h>
#include <troika/observe/progress.h>
#include <troika/schedule/draw.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/simulate.h>
#include <troika/schedule/validate.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

namespace troika {
namespace {

constexpr double kLongestTime = 1e9;            // ms
constexpr std::int64_t kMostCells = 1'000'000;  // stages x microbatches
constexpr int kWidth = 100;                     // where there is no terminal

struct SimulateArguments {
  std::string schedule;
  int stages = 1;
  int microbatches = 1;
  int virtual_stages = 1;
  RankCosts costs;
  std::string trace;
  bool json = false;
};

ScheduleShape shape_of(const SimulateArguments& options) {
  const int virtual_stages = resolve_virtual_stages(options.schedule, options.virtual_stages);
  const ScheduleShape shape{options.stages, virtual_stages, options.microbatches};
  check_schedule(options.schedule, shape);
  const std::int64_t cells = std::int64_t{shape.ranks} * std::int64_t{shape.virtual_stages} *
                             std::int64_t{shape.microbatches};
  if (cells > kMostCells) {
    throw UsageError(std::to_string(cells) +
                         " stages x virtual stages x microbatches are more than " +
                         std::to_string(kMostCells) + " to simulate",
                     "take fewer microbatches: the bubble depends on them by a formula, see "
                     "docs/schedules.md");
  }
  return shape;
}

// Before anything is printed.
void check_options(const SimulateArguments& options) {
  const RankCosts& costs = options.costs;
  if (costs.forward + costs.backward_input + costs.backward_weight <= 0) {
    throw UsageError("--forward, --backward and --weight are all 0: there is nothing to simulate",
                     "give at least one of them a time");
  }
  if (!options.trace.empty() && std::filesystem::is_directory(options.trace)) {
    throw UsageError("--trace: " + quote(options.trace) + " is a folder",
                     "name the file in it: --trace " + options.trace + "/trace.json");
  }
}

std::string title(const Schedule& schedule, const RankCosts& costs) {
  const auto count = [](int number, const std::string& one, const std::string& more) {
    return std::to_string(number) + " " + (number == 1 ? one : more);
  };
  const auto time = [](double ms) { return format_fixed(ms, 3); };
  return schedule.name + ": " + count(schedule.ranks, "stage", "stages") +
         (schedule.virtual_stages > 1
              ? " of " + count(schedule.virtual_stages, "virtual stage", "virtual stages")
              : "") +
         ", " + count(schedule.microbatches, "microbatch", "microbatches") + "; F " +
         time(costs.forward) + ", B " + time(costs.backward_input) + ", W " +
         time(costs.backward_weight) + ", C " + time(costs.transfer) + " ms\n";
}

int simulate_schedule(const SimulateArguments& options) {
  check_options(options);
  const Schedule schedule = make_schedule(options.schedule, shape_of(options));
  validate(schedule);
  const Simulation simulation = simulate(schedule, even_costs(schedule, options.costs));
  if (!options.trace.empty()) {
    write_file_atomically(options.trace, to_trace(schedule, simulation));
  }
  if (options.json) {
    std::cout << to_json(schedule, simulation) << std::endl;
    return 0;
  }
  const int columns = ::isatty(STDOUT_FILENO) == 1 ? terminal_width(STDOUT_FILENO) : kWidth;
  std::cout << title(schedule, options.costs) << "\n"
            << draw(schedule, simulation, columns) << "\n"
            << to_table(simulation) << std::flush;
  return 0;
}

void add_time(CLI::App& command, const std::string& flag, double& time,
              const std::string& description) {
  command.add_option(flag, time, description)
      ->type_name("MS")
      ->check(between(0.0, kLongestTime))
      ->capture_default_str();
}

void add_schedule(CLI::App& simulate, Action& action) {
  CLI::App* command = simulate.add_subcommand(
      "schedule", "Time a pipeline schedule, draw it, and count its bubble and its memory");
  auto options = std::make_shared<SimulateArguments>();
  command->add_option("--schedule", options->schedule, "One of " + join(schedule_names(), ", "))
      ->type_name("NAME")
      ->required();
  command->add_option("--stages", options->stages, "Ranks of the pipeline")
      ->check(between(1, 1024))
      ->required();
  command->add_option("--microbatches", options->microbatches, "Microbatches of a step")
      ->check(between(1, 1'000'000))
      ->required();
  command
      ->add_option("--virtual-stages", options->virtual_stages,
                   "Virtual stages of each rank; zb-v always has 2")
      ->check(between(1, 256))
      ->capture_default_str();
  RankCosts& costs = options->costs;
  add_time(*command, "--forward", costs.forward,
           "One microbatch's forward through all that a rank has of the model");
  add_time(*command, "--backward", costs.backward_input, "The same for the gradient of the input");
  add_time(*command, "--weight", costs.backward_weight, "The same for the gradient of the weights");
  add_time(*command, "--communicate", costs.transfer,
           "One transfer between ranks, which occupies neither");
  command->add_option("--trace", options->trace, "Write a trace for ui.perfetto.dev")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "One line of JSON, for machines");
  command->footer(
      "Examples:\n"
      "  troika simulate schedule --schedule 1f1b --stages 4 --microbatches 8\n"
      "  troika simulate schedule --schedule zb-v --stages 4 --microbatches 8 --communicate 0.1\n"
      "  troika simulate schedule --schedule interleaved-1f1b --stages 4 --microbatches 8 \\\n"
      "    --virtual-stages 2 --json --trace trace.json");
  command->callback(
      [options, &action] { action = [options] { return simulate_schedule(*options); }; });
}

}  // namespace

void add_simulate_command(CLI::App& app, Action& action) {
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Predict without machines: a pipeline schedule, a [sync] setting");
  simulate->require_subcommand(1);
  add_schedule(*simulate, action);
  add_simulate_sync(*simulate, action);
  simulate->footer(
      "Examples:\n"
      "  troika simulate schedule --schedule 1f1b --stages 4 --microbatches 8\n"
      "  troika simulate sync recipe.toml --workers 32 --speeds \"lognormal(1, 0.5)\"");
}

}  // namespace troika
