// How the probes of tests tell what they have found, and how they end.
#pragma once

#include <troika/base/error.h>
#include <troika/comm/options.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

namespace troika::test {

// To standard output, in one piece: many ranks write to one pipe.
inline void say(const std::string& line) {
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::perror("write");
}

// Returns what `run` returns, or the status of the error that it throws, which is told.
template <class Run>
int status_of(std::string_view name, Run&& run) {
  try {
    return run();
  } catch (const Error& error) {
    std::cerr << name << ": " << error.what() << "\n";
    if (!error.hint().empty()) std::cerr << "hint: " << error.hint() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << "\n";
    return 1;
  }
}

}  // namespace troika::test
