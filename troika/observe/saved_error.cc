#include <troika/observe/saved_error.h>

#include <fstream>
#include <sstream>
#include <system_error>

namespace troika {
namespace {

std::filesystem::path error_path(const std::filesystem::path& recorders, int rank) {
  return recorders / ("error-rank-" + std::to_string(rank) + ".txt");
}

}  // namespace

void save_error(const std::filesystem::path& recorders, int rank, const Error& error) noexcept {
  if (recorders.empty()) return;
  try {
    const std::filesystem::path path = error_path(recorders, rank);
    std::filesystem::path temporary = path;
    temporary += ".new";
    std::ofstream file(temporary);
    file << encode(failure_of(error)) << "\n";
    file.close();
    if (file) std::filesystem::rename(temporary, path);  // so that nobody reads half of it
    // The error that is under way tells more. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

std::optional<SavedError> read_saved_error(const std::filesystem::path& recorders, int rank) {
  std::ifstream file(error_path(recorders, rank));
  std::ostringstream text;
  text << file.rdbuf();
  SavedError error{decode_failure(text.str())};
  if (error.failure.message.empty()) return std::nullopt;
  std::error_code gone;
  const auto left = std::filesystem::last_write_time(error_path(recorders, rank), gone);
  if (!gone) error.age = std::filesystem::file_time_type::clock::now() - left;
  return error;
}

void remove_saved_error(const std::filesystem::path& recorders, int rank) noexcept {
  if (recorders.empty()) return;
  std::error_code missing;
  for (const char* ending : {"", ".new"}) {
    std::filesystem::remove(error_path(recorders, rank) += ending, missing);
  }
}

}  // namespace troika
