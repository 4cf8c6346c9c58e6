#include <troika/base/credentials.h>

#include <algorithm>
#include <string_view>

namespace troika {

std::string without_credentials(std::string text) {
  constexpr std::string_view kScheme = "://";
  for (std::size_t at = text.find(kScheme); at != std::string::npos; at = text.find(kScheme, at)) {
    at += kScheme.size();
    // A secret may have slashes in it, unescaped; a bucket has no colon before them.
    const std::size_t slash = std::min(text.find_first_of("/?'\" ", at), text.size());
    const bool has_colon = text.find(':', at) < slash;
    const std::size_t end =
        has_colon ? std::min(text.find_first_of("?'\" ", at), text.size()) : slash;
    const std::size_t sign = text.rfind('@', end);
    if (sign != std::string::npos && sign >= at && sign < end) text.erase(at, sign + 1 - at);
  }
  return text;
}

}  // namespace troika
