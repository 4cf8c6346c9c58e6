// From the words of a command line to an exit code: the one place that turns errors into text.
#pragma once

#include <troika/cli/command.h>

namespace troika {

// Reads the command line into `app`, runs the `action` it chose, and returns the exit code of
// docs/errors.md. An error is one line "troika: ..." and, where there is one, a line "hint: ..." on
// stderr, with nothing of its own on stdout. Does not throw.
[[nodiscard]] int run_command_line(CLI::App& app, Action& action, int argc,
                                   const char* const* argv);

}  // namespace troika
