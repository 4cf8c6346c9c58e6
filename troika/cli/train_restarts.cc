#include <sys/stat.h>
#include <troika/base/error.h>
#include <troika/cli/train_restarts.h>
#include <troika/launch/restart.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_folder.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Which file is at a path, as far as the file system tells; zeros where there is none.
using FileIdentity = std::tuple<ino_t, time_t, long>;

FileIdentity identity_of(const std::filesystem::path& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_ino, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
}

// The run of a launcher. An older run that is to be replaced lies in its folder until the ranks
// have begun, which write a recipe of their own.
class LaunchedRun {
 public:
  LaunchedRun(const Recipe& recipe, Existing existing)
      : run_(run_folder(recipe)),
        replaces_(existing == Existing::kOverwrite),
        recipe_before_(identity_of(recipe_path(run_))) {}

  [[nodiscard]] JobProgress progress() const {
    if (is_older_run()) return {};
    return {last_step_of(run_ / "metrics.jsonl"), newest_checkpoint()};
  }

  // What has been trained is not to be replaced by the next start.
  void prepare(LaunchOptions& options) const {
    if (!replaces_ || is_older_run()) return;
    std::erase(options.command, "--overwrite");
  }

 private:
  [[nodiscard]] bool is_older_run() const {
    return replaces_ && recipe_before_ != FileIdentity() &&
           identity_of(recipe_path(run_)) == recipe_before_;
  }

  [[nodiscard]] std::int64_t newest_checkpoint() const {
    try {
      const std::vector<std::int64_t> steps = checkpoints_of(run_).steps();
      return steps.empty() ? 0 : steps.front();
    } catch (const DataError&) {  // the ranks say so, should they start again
      return 0;
    }
  }

  std::filesystem::path run_;
  bool replaces_;
  FileIdentity recipe_before_;
};

}  // namespace

LaunchResult train_with_restarts(LaunchOptions options, const Recipe& recipe, Existing existing) {
  const LaunchedRun run(recipe, existing);
  options.progress = [&run] { return run.progress(); };
  RestartPolicy policy;
  policy.max_restarts = static_cast<int>(recipe.elastic.max_restarts);
  policy.prepare = [&run](LaunchOptions& next) { run.prepare(next); };
  return run_with_restarts(std::move(options), policy);
}

}  // namespace troika
