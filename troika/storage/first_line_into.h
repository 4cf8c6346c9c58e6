// Internal: what the plug-in for Apache Arrow says, on one line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace troika {

// Returns what keeps the first line of a message in `text`: Arrow's may have several.
[[nodiscard]] std::function<void(std::string_view)> first_line_into(std::string& text);

}  // namespace troika
