#include <chaos/file_layer.h>
#include <chaos/scenes.h>
#include <troika/base/file.h>

namespace troika::chaos {

namespace fs = std::filesystem;

Stage::Stage() {
  skip_syncs();
  for (int i = 0; i < kScenes; ++i) {
    const auto scene = static_cast<Scene>(i);
    fs::create_directory(template_of(scene));
    if (scene == Scene::kNone) continue;
    const CheckpointFolder checkpoints = checkpoints_in(template_of(scene));
    take_checkpoint(checkpoints, kOlder, "older");
    take_checkpoint(checkpoints, kNewest, "older");
    if (scene == Scene::kUnfinished) {
      write_shards(checkpoints, kNext, "killed");
      write_file_atomically(checkpoints.step_folder(kNext) / ".tmp-0123", "half a file");
    }
    if (scene == Scene::kAgain) take_checkpoint(checkpoints, kNext, "before");
  }
}

fs::path Stage::template_of(Scene scene) const {
  return folder_ / ("scene-" + std::to_string(static_cast<int>(scene)));
}

void Stage::set(Scene scene) const {
  for (const fs::path& folder : {live(), graves(), after()}) fs::remove_all(folder);
  fs::create_directory(graves());
  fs::copy(template_of(scene), live(),
           fs::copy_options::recursive | fs::copy_options::create_hard_links);
}

std::int64_t Stage::newest_of(Scene scene) {
  if (scene == Scene::kNone) return 0;
  return scene == Scene::kAgain ? kNext : kNewest;
}

}  // namespace troika::chaos
