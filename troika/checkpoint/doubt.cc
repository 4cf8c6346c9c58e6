#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/doubt.h>

#include <exception>
#include <system_error>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestReason = 1U << 16U;

fs::path mark_of(const fs::path& model) {
  return model.string() + "." + kDoubt;
}

}  // namespace

std::string doubt_of(const Manifest& manifest) {
  const auto doubt = manifest.provenance.find(kDoubt);
  return doubt == manifest.provenance.end() ? "" : doubt->second;
}

std::string doubt_of(const fs::path& place) {
  if (is_checkpoint(place)) return doubt_of(read_checkpoint(place));
  std::error_code ignored;
  if (is_remote(place.native()) || !fs::exists(mark_of(place), ignored)) return "";
  return read_file(mark_of(place), kLongestReason);
}

std::string objection_to(const Manifest& manifest, TakeDoubtful doubtful) {
  const std::string doubt = doubt_of(manifest);
  return doubt.empty() || doubtful == TakeDoubtful::kYes ? "" : "it is in doubt: " + doubt;
}

void mark_doubtful(const CheckpointFolder& folder, std::int64_t first, const std::string& reason,
                   const std::function<void()>& check) {
  std::exception_ptr problem;
  for (const std::int64_t each : folder.steps()) {
    if (each < first) continue;
    try {
      Manifest manifest = folder.read(each);
      manifest.provenance[kDoubt] = reason;
      folder.commit(manifest, check);
    } catch (const Error&) {
      if (!problem) problem = std::current_exception();
    }
  }
  if (problem) std::rethrow_exception(problem);
}

void mark_doubtful(const fs::path& model, const std::string& reason) {
  write_file_atomically(mark_of(model), reason);
}

void clear_doubt(const fs::path& model) {
  std::error_code error;
  fs::remove(mark_of(model), error);
  if (error) throw_storage_error("remove", mark_of(model), error.value());
}

}  // namespace troika
