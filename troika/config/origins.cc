#include <troika/base/error.h>
#include <troika/config/origins.h>

namespace troika {

const std::string& Origins::where(std::initializer_list<std::string_view> full_keys) const {
  for (const std::string_view key : full_keys) {
    const auto found = where_.find(key);
    if (found != where_.end()) return found->second;
  }
  return source_;
}

void Origins::fail(std::initializer_list<std::string_view> full_keys, const std::string& message,
                   const std::string& hint) const {
  std::string text = where(full_keys) + ": ";
  const std::string_view first = *full_keys.begin();
  const std::size_t dot = first.find('.');
  if (dot != std::string_view::npos) text += "[" + std::string(first.substr(0, dot)) + "] ";
  throw UsageError(text + message, hint);
}

}  // namespace troika
