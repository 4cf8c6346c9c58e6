#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/cli/verify_folder.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace troika {
namespace {

constexpr std::uint64_t kMostResultBytes = 1 << 28;

}  // namespace

VerifyFolder::VerifyFolder() : path_(make_temporary_folder("troika-verify")) {}

VerifyFolder::~VerifyFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TrialResults::add(const TrialResult& result) const {
  std::ofstream file(path_, std::ios::app);
  file << to_json(result) << "\n" << std::flush;
  if (!file) throw_storage_error("write", path_, errno);
}

std::vector<TrialResult> TrialResults::read() const {
  if (!std::filesystem::exists(path_)) return {};
  std::istringstream lines(read_file(path_, kMostResultBytes));
  std::vector<TrialResult> results;
  for (std::string line; std::getline(lines, line);) results.push_back(trial_result_of(line));
  return results;
}

}  // namespace troika
