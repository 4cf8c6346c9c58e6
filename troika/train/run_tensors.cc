#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/encryption.h>
#include <troika/observe/log.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_folder.h>
#include <troika/train/run_tensors.h>
#include <troika/train/saved_model.h>

#include <string>

namespace troika {

namespace fs = std::filesystem;

std::unique_ptr<TensorSource> open_run_tensors(const fs::path& run,
                                               std::optional<std::int64_t> step) {
  const CheckpointFolder checkpoints = checkpoints_of(run);
  const auto open_step = [&](std::int64_t each) {
    auto source = open_checkpoint_tensors(checkpoints, each);
    warn_of_doubt(checkpoints.step_folder(each));
    return source;
  };
  if (step) return open_step(*step);
  const bool has_model = fs::exists(model_path(run));
  if (has_model && fs::exists(summary_path(run))) return open_tensor_file(model_path(run));
  // Of a run that is not finished the model is of where it was last stopped, if it ever was.
  std::optional<DataError> newest;
  for (const std::int64_t each : checkpoints.steps()) {
    try {
      return open_step(each);
    } catch (const MissingKeyError&) {
      throw;  // it is not damaged
    } catch (const DataError& error) {
      log_warning("the checkpoint of step " + std::to_string(each) +
                  " is not used: " + error.what());
      if (!newest) newest = error;
    }
  }
  if (newest) throw DataError(*newest);
  if (has_model) return open_tensor_file(model_path(run));
  throw DataError(shown_place(run) + " has neither model.safetensors nor a checkpoint",
                  "give the folder that `troika train` named at its end");
}

bool is_run_folder(const fs::path& path) {
  return fs::exists(recipe_path(path)) || fs::exists(path / "checkpoints") ||
         !CheckpointFolder(path).steps().empty();
}

std::unique_ptr<TensorSource> open_any_tensors(const fs::path& path,
                                               std::optional<std::int64_t> step) {
  if (is_remote(path.native())) {
    return is_checkpoint(path) ? open_step_tensors(path) : open_run_tensors(path, step);
  }
  if (!fs::is_directory(path)) return open_tensor_file(path);
  if (fs::exists(path / "manifest.json")) return open_step_tensors(path);
  return is_run_folder(path) ? open_run_tensors(path, step) : open_hub_tensors(path);
}

}  // namespace troika
