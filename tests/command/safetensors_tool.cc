// Lets a script use our safetensors reader and writer:
//   safetensors_tool copy IN OUT [IN OUT ...]   reads IN, writes the same tensors to OUT
//   safetensors_tool check FILE ...             prints "ok" or the error, a line each
#include <troika/base/error.h>
#include <troika/checkpoint/safetensors.h>

#include <exception>
#include <iostream>
#include <span>
#include <string_view>
#include <vector>

#include "support/tool_main.h"

namespace troika {
namespace {

void copy(const char* from, const char* to) {
  const SafetensorsFile file(from);
  std::vector<TensorBytes> tensors;
  for (const TensorEntry& entry : file.entries()) {
    tensors.push_back({entry.name, entry.type, entry.shape, file.data(entry)});
  }
  write_safetensors(to, tensors, file.metadata());
}

void check_file(const char* path) {
  try {
    const SafetensorsFile file(path);
    std::cout << "ok\n";
  } catch (const DataError& error) {
    std::cout << error.what() << "\n";
  }
}

int run(std::span<char*> arguments) {
  if (arguments.size() < 2) return 2;
  const std::string_view action = arguments[1];
  const auto files = arguments.subspan(2);
  if (action == "copy" && files.size() % 2 == 0) {
    for (std::size_t i = 0; i < files.size(); i += 2) copy(files[i], files[i + 1]);
    return 0;
  }
  if (action != "check") return 2;
  for (const char* file : files) check_file(file);
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  return troika::test::tool_main(argc, argv, troika::run);
}
