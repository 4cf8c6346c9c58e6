// Arguments of operators, in the forms that their schemas have. Internal to this folder.
#pragma once

#include <troika/exported/graph.h>
#include <troika/exported/schema.h>

#include <string>

namespace troika {

// Returns the name of the value that an argument is; "" for a literal.
[[nodiscard]] std::string name_of_value(const schema::Argument& argument);

// Returns the kind of the argument's type, of what it holds where it is optional.
[[nodiscard]] c10::TypeKind kind_of_argument(const c10::Argument& argument);

// Returns a number as a tensor that has no say in the type of the result.
[[nodiscard]] Operand wrapped(const Operand& number);

// Returns an empty list in the type of the argument; other values as they are.
[[nodiscard]] c10::IValue list_of_type(c10::IValue value, const c10::Argument& argument);

// Returns what is wrong with a type of numbers, a layout or a format of memory; "" where nothing
// is. LibTorch takes numbers for these, and does not check them.
[[nodiscard]] std::string fault_of_enumeration(const Operand& operand,
                                               const c10::Argument& argument);

}  // namespace troika
