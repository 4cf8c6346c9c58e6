// What checkpoints may be there before a next one is taken, and a place for each trial.
#pragma once

#include <chaos/checkpoint_writer.h>
#include <support/temporary_folder.h>

#include <filesystem>
#include <string>

namespace troika::chaos {

// The steps of all scenes.
inline constexpr std::int64_t kOlder = 2, kNewest = 4, kNext = 6, kAfterNext = 8, kLast = 10;

enum class Scene {
  kTwo,         // two checkpoints, as many as are kept
  kUnfinished,  // and files of the next, of a run that was killed before its manifest
  kAgain,       // and the next, which is taken once more
  kNone,        // none, nor their folder
};
inline constexpr int kScenes = 4;

// Makes each scene once, and copies of it as further names of the same files.
class Stage {
 public:
  Stage();

  // Empties `live`, and puts a scene there.
  void set(Scene scene) const;
  // Returns the newest step of a scene; 0 where there is none.
  [[nodiscard]] static std::int64_t newest_of(Scene scene);

  [[nodiscard]] std::filesystem::path live() const { return folder_ / "live"; }
  [[nodiscard]] std::filesystem::path graves() const { return folder_ / "graves"; }
  [[nodiscard]] std::filesystem::path after() const { return folder_ / "after"; }
  // Returns the checkpoints of a folder that is like live().
  [[nodiscard]] static CheckpointFolder checkpoints_in(const std::filesystem::path& folder) {
    return CheckpointFolder(folder / "checkpoints");
  }

 private:
  [[nodiscard]] std::filesystem::path template_of(Scene scene) const;

  TemporaryFolder folder_;
};

}  // namespace troika::chaos
