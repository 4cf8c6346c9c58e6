#include <troika/base/credentials.h>
#include <troika/storage/first_line_into.h>

namespace troika {

std::function<void(std::string_view)> first_line_into(std::string& text) {
  return [&text](std::string_view taken) {
    text = without_credentials(std::string(taken.substr(0, taken.find('\n'))));
    while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  };
}

}  // namespace troika
