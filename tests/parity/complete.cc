// The complete matrix of models and layouts, for `make test-parity`: prints a line a model as it
// goes, what differs, and a summary; exits with 1 if anything does.
#include <support/temporary_folder.h>

#include <exception>
#include <iostream>

#include "matrix.h"

namespace troika::test {
namespace {

int run() {
  const TemporaryFolder folder;
  write_shards(folder / "shards");
  std::vector<MatrixCase> cases = complete_matrix(folder / "shards");
  cases.push_back(mlp_case());
  std::size_t layouts = 0, wrong = 0, done = 0;
  for (const MatrixCase& one : cases) {
    const std::vector<std::string> complaints = verify(one, folder.path());
    layouts += one.layouts.size();
    wrong += complaints.size();
    std::cout << ++done << "/" << cases.size() << "  " << one.layouts.size() << " layouts, "
              << complaints.size() << " differ: " << one.name << std::endl;
    for (const std::string& complaint : complaints) std::cout << "  " << complaint << std::endl;
  }
  std::cout << cases.size() << " models, " << layouts << " layouts, " << wrong << " differ"
            << std::endl;
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace troika::test

int main() {
  try {
    return troika::test::run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
