// What the test program and its ranks agree on: names of variables and files.
#pragma once

#include <filesystem>
#include <string>

namespace troika::test {

inline constexpr const char* kFunctionVariable = "TROIKA_TEST_FUNCTION";
inline constexpr const char* kRankVariable = "TROIKA_TEST_RANK";
inline constexpr const char* kSizeVariable = "TROIKA_TEST_SIZE";
inline constexpr const char* kPortVariable = "TROIKA_TEST_PORT";
inline constexpr const char* kEngineVariable = "TROIKA_TEST_ENGINE";
inline constexpr const char* kReductionOrderVariable = "TROIKA_TEST_FOLD";
inline constexpr const char* kPretendVariable = "TROIKA_TEST_PRETEND";
inline constexpr const char* kFolderVariable = "TROIKA_TEST_FOLDER";
inline constexpr const char* kArgumentPrefix = "TROIKA_TEST_ARGUMENT_";

inline std::filesystem::path output_path(const std::filesystem::path& folder, int rank) {
  return folder / ("output-of-rank-" + std::to_string(rank));
}

inline std::filesystem::path values_path(const std::filesystem::path& folder, int rank) {
  return folder / ("values-of-rank-" + std::to_string(rank));
}

// Of a rank under mpirun, which does not pass exit codes on.
inline std::filesystem::path exit_code_path(const std::filesystem::path& folder, int rank) {
  return folder / ("exit-code-of-rank-" + std::to_string(rank));
}

}  // namespace troika::test
