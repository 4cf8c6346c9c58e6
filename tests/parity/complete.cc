// The complete matrix of models and layouts, for `make test-parity`: prints a line a model as it
// goes, what differs, and a summary; exits with 1 if anything does. With an argument K/N only every
// Nth model, from the Kth on: for several machines, or several evenings.
#include <support/temporary_folder.h>
#include <troika/base/error.h>

#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "matrix.h"

namespace troika::test {
namespace {

struct Part {
  std::size_t first = 1, of = 1;
};

// "K/N".
Part parse_part(const std::string& text) {
  Part part;
  std::istringstream words(text);
  char slash = 0;
  words >> part.first >> slash >> part.of;
  if (!words || !words.eof() || slash != '/' || part.first < 1 || part.first > part.of) {
    throw UsageError("'" + text + "' is no part such as 2/8");
  }
  return part;
}

int run(const Part& part) {
  const TemporaryFolder folder;
  write_shards(folder / "shards");
  std::vector<MatrixCase> cases = complete_matrix(folder / "shards");
  cases.push_back(mlp_case());
  std::size_t layouts = 0, wrong = 0, done = 0;
  for (const MatrixCase& one : cases) {
    if (done++ % part.of != part.first - 1) continue;
    const std::vector<std::string> failures = verify(one, folder.path());
    layouts += one.layouts.size();
    wrong += failures.size();
    std::cout << done << "/" << cases.size() << "  " << one.layouts.size() << " layouts, "
              << failures.size() << " differ: " << one.name << std::endl;
    for (const std::string& failure : failures) std::cout << "  " << failure << std::endl;
  }
  std::cout << (cases.size() + part.of - part.first) / part.of << " models, " << layouts
            << " layouts, " << wrong << " differ" << std::endl;
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace troika::test

int main(int argc, char** argv) {
  try {
    return troika::test::run(troika::test::parse_part(argc > 1 ? argv[1] : "1/1"));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
