#include <troika/base/text.h>
#include <troika/exported/node_title.h>

namespace troika {
namespace {

std::string value_in(const schema::Node& node, const std::string& key) {
  const auto found = node.get_metadata().find(key);
  return found == node.get_metadata().end() ? "" : found->second;
}

// The last line of the user's Python: "net.py line 12: self.conv(x)".
std::string line_of_python(const schema::Node& node) {
  const std::string trace = value_in(node, "stack_trace");
  const std::size_t file = trace.rfind("File \"");
  if (file == std::string::npos) return "";
  const std::size_t end = trace.find('"', file + 6), line = trace.find("line ", file);
  if (end == std::string::npos || line == std::string::npos) return "";
  std::string path = trace.substr(file + 6, end - file - 6);
  path = path.substr(path.rfind('/') + 1);
  const std::size_t digits = trace.find_first_not_of("0123456789", line + 5);
  std::string text = path + " line " + trace.substr(line + 5, digits - line - 5);
  const std::size_t code = trace.find('\n', line);
  if (code == std::string::npos) return text;
  const std::size_t first = trace.find_first_not_of(" \n", code);
  if (first == std::string::npos) return text;
  return text + ": " + trace.substr(first, trace.find('\n', first) - first);
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
