// What the processes of the launcher's tests do: this test program, started again by the launcher
// as a rank, or by a test as a launcher.
#pragma once

#include <string>
#include <vector>

namespace troika::testing {

// Plays the rank called `name` and returns its exit status.
int play_rank(const std::string& name);

// `arguments`: the name of the rank, then flags as of `troika train`. Runs the ranks and prints the
// root cause as the command does.
int play_launcher(const std::vector<std::string>& arguments);

}  // namespace troika::testing
