// The command. What it can do is one file a subcommand beside this one; how errors reach the user
// is run.h.
#include <troika/base/standard_descriptors.h>
#include <troika/cli/command.h>
#include <troika/cli/help.h>
#include <troika/cli/ranks.h>
#include <troika/cli/run.h>
#include <troika/launch/signals.h>
#include <troika/train/tensor_memory.h>

#include <CLI/CLI.hpp>
#include <csignal>

namespace {

// In the order of --help.
constexpr void (*kCommands[])(CLI::App&, troika::Action&) = {
    troika::add_train_command,    troika::add_generate_command,   troika::add_predict_command,
    troika::add_evaluate_command, troika::add_checkpoint_command, troika::add_data_command,
    troika::add_recipe_command,   troika::add_launch_command,     troika::add_inspect_command,
    troika::add_bench_command,    troika::add_mesh_command,       troika::add_simulate_command,
    troika::add_verify_command,   troika::add_doctor_command,     troika::add_completion_command,
};

}  // namespace

int main(int argc, char** argv) {
  troika::open_standard_descriptors();
  troika::end_on_signals_as_process_one();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit is then an error of the write
  troika::reuse_tensor_memory();
  troika::set_command_line({argv, static_cast<std::size_t>(argc)});
  CLI::App app("Distributed machine learning in C++: one recipe, any number of ranks.", "troika");
  app.formatter(troika::help_formatter());
  app.set_version_flag("--version", TROIKA_VERSION, "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  troika::Action action;
  for (const auto add_command : kCommands) add_command(app, action);
  // Behind the subcommands, which would take it over where they have none of their own.
  app.footer(
      "Examples:\n"
      "  troika recipe --defaults > run.toml\n"
      "  troika train run.toml --ranks 2\n"
      "  troika train run.toml --set train.steps=1000 --set name=longer\n\n"
      "Exit codes: 0 done, 1 internal (verify: a layout differs), 2 usage or recipe, 3 data,\n"
      "4 rendezvous or deadline, 5 a rank died, 6 non-finite, 7 storage, 75 checkpointed on a\n"
      "signal, 130 interrupted.");
  return troika::run_command_line(app, action, argc, argv);
}
