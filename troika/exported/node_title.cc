#include <troika/base/text.h>
#include <troika/exported/node_title.h>

namespace troika {
namespace {

std::string value_in(const schema::Node& node, const std::string& key) {
  const auto found = node.get_metadata().find(key);
  return found == node.get_metadata().end() ? "" : found->second;
}

// One frame of a trace, of which `frame` is all from its "File" on: "net.py line 12: self.conv(x)".
std::string line_of_frame(const std::string& frame) {
  constexpr std::size_t kFirst = 6;  // behind: File "
  const std::size_t end = frame.find('"', kFirst), line = frame.find("line ");
  if (end == std::string::npos || line == std::string::npos) return "";
  std::string path = frame.substr(kFirst, end - kFirst);
  path = path.substr(path.rfind('/') + 1);
  const std::size_t digits = frame.find_first_not_of("0123456789", line + 5);
  std::string text = path + " line " + frame.substr(line + 5, digits - line - 5);
  const std::size_t code = frame.find('\n', line);
  if (code == std::string::npos) return text;
  const std::size_t first = frame.find_first_not_of(" \n", code);
  if (first == std::string::npos) return text;
  return text + ": " + frame.substr(first, frame.find('\n', first) - first);
}

// The last line of Python that is not one of PyTorch's own modules.
std::string line_of_python(const schema::Node& node) {
  const std::string trace = value_in(node, "stack_trace");
  std::string line;
  std::size_t next = trace.find("File \"");
  while (next != std::string::npos) {
    const std::size_t begin = next;
    next = trace.find("File \"", begin + 1);
    const std::string frame = trace.substr(begin, next - begin);
    const bool is_of_torch = frame.find("/torch/") < frame.find('"', 6);
    if (line.empty() || !is_of_torch) line = line_of_frame(frame);
  }
  return line;
}

}  // namespace

// "L__self__,,Net;L__self___conv,conv,torch.nn.Conv2d" ends in the path "conv".
std::string module_of(const schema::Node& node) {
  const std::string stack = value_in(node, "nn_module_stack");
  const std::string last = stack.substr(stack.rfind(';') + 1);
  const std::size_t first = last.find(',');
  if (first == std::string::npos) return "";
  return last.substr(first + 1, last.find(',', first + 1) - first - 1);
}

std::string title_of(const schema::Node& node) {
  const std::string name = node.get_name().value_or(node.get_target());
  const std::string line = line_of_python(node);
  return "node " + quote(name, 100) + (line.empty() ? "" : " (" + quote(line, 200) + ")");
}

}  // namespace troika
