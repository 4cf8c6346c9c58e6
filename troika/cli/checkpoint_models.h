// The subcommands of `troika checkpoint` that write files for others, read theirs, or compare.
#pragma once

#include <troika/cli/command.h>

namespace troika {

// Adds reshard, diff, export and import.
void add_checkpoint_models(CLI::App& checkpoint, Action& action);

}  // namespace troika
