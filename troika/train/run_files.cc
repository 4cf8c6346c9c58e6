#include <troika/base/file.h>
#include <troika/checkpoint/checkpoint_folder.h>
#include <troika/train/run_files.h>
#include <troika/train/run_folder.h>

#include <array>
#include <set>
#include <string>

namespace troika {
namespace {

namespace fs = std::filesystem;

std::array<fs::path, 3> run_files(const fs::path& run) {
  return {run / "metrics.jsonl", data_path(run), recipe_path(run)};
}

std::string folder_of(std::int64_t step) {
  return step_name(step) + "/" + kRunFilesPrefix;
}

}  // namespace

void upload_run_files(const ObjectStore& store, std::int64_t step, const fs::path& run) {
  for (const fs::path& file : run_files(run)) {
    if (fs::exists(file)) store.upload(file, folder_of(step) + file.filename().string());
  }
}

void download_run_files(const ObjectStore& store, std::int64_t step, const fs::path& run) {
  const std::string folder = folder_of(step);
  std::set<std::string> names;
  for (const ObjectStore::File& file : store.list(folder)) names.insert(file.name);
  for (const fs::path& file : run_files(run)) {
    const std::string name = folder + file.filename().string();
    if (names.contains(name)) store.download(name, file);
  }
}

}  // namespace troika
