// The command `troika inspect`.
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/observe/inspection.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

namespace troika {
namespace {

struct InspectArguments {
  std::string run;
  int last = 10;
  bool json = false;
};

int inspect(const InspectArguments& options) {
  const Inspection inspection = inspect_run(options.run);
  std::cout << (options.json ? to_json(inspection) + "\n" : to_text(inspection, options.last));
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what the ranks of a run are doing, or did last, side by side");
  auto options = std::make_shared<InspectArguments>();
  command->add_option("RUN", options->run, "Run folder, of a run that goes on or has ended")
      ->required();
  command->add_option("--last", options->last, "How many operations of each axis to show")
      ->check(between(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print all that the flight recorders hold as JSON");
  command->footer(
      "Examples:\n"
      "  troika inspect runs/quickstart\n"
      "  troika inspect runs/quickstart --last 40");
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace troika
