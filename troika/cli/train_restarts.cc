#include <troika/base/error.h>
#include <troika/base/file_identity.h>
#include <troika/cli/train_restarts.h>
#include <troika/launch/restart.h>
#include <troika/observe/jsonl_sink.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_folder.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Returns what tells the file at a path from another; nothing where there is none.
std::string version_of(const std::filesystem::path& path) {
  const auto found = FileIdentity::of(path);
  return found ? found->version() : "";
}

// The run of a launcher. An older run that is to be replaced lies in its folder until the ranks
// have begun, which write a recipe of their own.
class LaunchedRun {
 public:
  LaunchedRun(const Recipe& recipe, Existing existing)
      : run_(run_folder(recipe)),
        replaces_(existing == Existing::kOverwrite),
        recipe_before_(version_of(recipe_path(run_))) {}

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
    return replaces_ && !recipe_before_.empty() && version_of(recipe_path(run_)) == recipe_before_;
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
  std::string recipe_before_;  // its recipe, as the file system tells it from others
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
