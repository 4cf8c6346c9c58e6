// The operators that an exported program may call. Internal to this folder.
#pragma once

#include <troika/exported/graph.h>

#include <optional>
#include <string_view>

namespace troika {

// Returns whether an operator of LibTorch, by its name without the namespace and the overload, may
// be called: one that computes on its arguments alone. `x_` may where `x` may.
[[nodiscard]] bool is_allowed_operator(std::string_view name);

// Returns whether an operator says something of the program and computes nothing: an assertion, or
// a bound of a size.
[[nodiscard]] bool is_assertion(std::string_view name);

// Returns the arithmetic on sizes that a function of Python's stands for: "_operator.mul". Returns
// nothing for others.
[[nodiscard]] std::optional<NumberOperator> number_operator(std::string_view target);

// Returns whether an argument of that name switches an operator between training and evaluation.
[[nodiscard]] bool switches_training(std::string_view argument);

}  // namespace troika
