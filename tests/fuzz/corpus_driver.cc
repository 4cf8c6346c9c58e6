// Runs a fuzz target over a corpus where libFuzzer is not: every file as it is, then a fixed number
// of seeded mutations of each. The same inputs on every machine, so a finding is a failing test.
//   usage: fuzz_<name> CORPUS [MUTATIONS-PER-FILE]
#include <fuzz/fuzz.h>
#include <troika/base/file.h>
#include <troika/base/hash.h>
#include <troika/base/random.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace troika {
namespace {

constexpr std::uint64_t kMaxInput = 1 << 20;

// Draws numbers one after another.
class Draws {
 public:
  explicit Draws(std::uint64_t key, std::uint64_t substream) : stream_(key, substream) {}
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : stream_.below(next_++, bound); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

std::string interesting_number(Draws& draws) {
  static constexpr std::array<std::uint64_t, 8> kNumbers{
      0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF};
  const std::uint64_t number = kNumbers[draws.below(kNumbers.size())];
  if (draws.below(2) == 0) return std::to_string(number);
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
  return bytes;
}

void mutate_once(std::string& input, const std::string& other, Draws& draws) {
  const std::size_t at = draws.below(input.size() + 1);
  const std::size_t count = std::min(draws.below(16) + 1, input.size() - at);
  switch (draws.below(8)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << draws.below(8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(draws.below(256));
      break;
    case 2:
      input.insert(at, 1, static_cast<char>(draws.below(256)));
      break;
    case 3:
      input.erase(at, count);
      break;
    case 4:
      input.insert(at, input.substr(at, count));
      break;
    case 5:
      input.replace(at, draws.below(count + 1), interesting_number(draws));
      break;
    case 6:
      input.insert(at, other.substr(draws.below(other.size() + 1), draws.below(64)));
      break;
    default:
      if (draws.below(4) == 0) input.resize(at);
  }
}

void run(const std::string& input, const std::string& origin) {
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  } catch (const std::exception& error) {
    const auto kept =
        std::filesystem::temp_directory_path() / ("finding-" + hex(content_hash(input)));
    write_file_atomically(kept, input);
    throw FuzzFinding(origin + ": " + error.what() + " (input kept as " + kept.string() + ")");
  }
}

void run_corpus(const std::filesystem::path& folder, std::uint64_t mutations) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  require(!paths.empty(), "the corpus has files");
  std::vector<std::string> inputs;
  inputs.reserve(paths.size());
  for (const auto& path : paths) inputs.push_back(read_file(path, kMaxInput));

  run("", "the empty input");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    run(inputs[i], paths[i].filename());
    const std::uint64_t key = stream_key(1, paths[i].filename().string());
    for (std::uint64_t trial = 0; trial < mutations; ++trial) {
      Draws draws(key, trial);
      std::string input = inputs[i];
      for (std::size_t left = draws.below(6) + 1; left > 0; --left) {
        mutate_once(input, inputs[draws.below(inputs.size())], draws);
      }
      run(input, paths[i].filename().string() + ", mutation " + std::to_string(trial));
    }
  }
  std::cout << inputs.size() << " files, " << inputs.size() * mutations << " mutations\n";
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0] << " CORPUS [MUTATIONS-PER-FILE]\n";
    return 2;
  }
  try {
    troika::run_corpus(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
