// What TorchScript's interpreter throws, in one line. Internal: for implementation files.
#pragma once

#include <exception>
#include <string>

namespace troika {

// Returns the exception behind an error of the interpreter, which quotes the traceback of the
// script: "ValueError: no such mode", or the words of the operator that failed.
[[nodiscard]] std::string script_error(const std::exception& error);

}  // namespace troika
