#include <c10/util/Exception.h>
#include <torch/csrc/jit/runtime/jit_exception.h>
#include <troika/nn/script_error.h>

#include <string_view>

namespace troika {

std::string script_error(const std::exception& error) {
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  if (const auto* raised = dynamic_cast<const torch::jit::JITException*>(&error)) {
    const std::string name = raised->getPythonClassName().value_or("Exception");
    const auto message = raised->getOriginalMsg();
    if (message) return name.substr(name.rfind('.') + 1) + ": " + first_line(*message);
  }
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  static constexpr std::string_view kMark = "\nRuntimeError: ";
  const std::size_t mark = text.rfind(kMark);
  return first_line(mark == std::string::npos ? text : text.substr(mark + 1));
}

}  // namespace troika
