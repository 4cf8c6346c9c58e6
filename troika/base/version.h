// The version of the library, as files and ranks state it.
#pragma once

#include <string_view>

namespace troika {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace troika
