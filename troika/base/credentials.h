// Keeps credentials out of messages.
#pragma once

#include <string>

namespace troika {

// Returns a text whose URLs have lost their credentials: "s3://KEY:SECRET@bucket" is "s3://bucket".
[[nodiscard]] std::string without_credentials(std::string text);

}  // namespace troika
