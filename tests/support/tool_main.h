// The main() of a small program that a test of the command starts: what it throws is a line, and 1.
#pragma once

#include <exception>
#include <iostream>
#include <span>

namespace troika::test {

template <class Run>
int tool_main(int argc, char** argv, const Run& run) {
  try {
    return run(std::span(argv, static_cast<std::size_t>(argc)));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

}  // namespace troika::test
