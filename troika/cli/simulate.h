// The subcommands of `troika simulate`. Internal to this folder.
#pragma once

#include <troika/cli/command.h>

namespace troika {

void add_simulate_sync(CLI::App& simulate, Action& action);

}  // namespace troika
