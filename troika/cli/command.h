// A subcommand is one file with one function that adds it to the command line: its flags, its help
// with examples, and what it does. To add one: its function here, its file in CMakeLists.txt, its
// name in main.cc.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace troika {

// The work of the chosen subcommand. Returns the exit code, or throws an Error. Subcommands set it
// in their CLI11 callback, so that it runs after the whole command line was read.
using Action = std::function<int()>;

void add_train_command(CLI::App& app, Action& action);
void add_generate_command(CLI::App& app, Action& action);
void add_predict_command(CLI::App& app, Action& action);
void add_evaluate_command(CLI::App& app, Action& action);
void add_checkpoint_command(CLI::App& app, Action& action);
void add_launch_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_simulate_command(CLI::App& app, Action& action);
void add_verify_command(CLI::App& app, Action& action);
void add_mesh_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);
void add_data_command(CLI::App& app, Action& action);
void add_recipe_command(CLI::App& app, Action& action);
void add_completion_command(CLI::App& app, Action& action);

}  // namespace troika
