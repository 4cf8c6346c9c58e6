#include <troika/base/credentials.h>
#include <troika/storage/keep_line.h>

namespace troika {

std::function<void(std::string_view)> keep_line(std::string& text) {
  return [&text](std::string_view taken) {
    text = without_credentials(std::string(taken.substr(0, taken.find('\n'))));
    while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  };
}

}  // namespace troika
