// Copies of checkpoints behind a URL, here a folder of this host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/recipe/recipe_file.h>
#include <troika/train/checkpoint_mirror.h>
#include <troika/train/checkpointer.h>
#include <troika/train/run_folder.h>

#include <map>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReason = "rank 1 on host b has other data";

class Mirrored : public testing::Test {
 protected:
  Mirrored() {
    recipe_.name = "run";
    recipe_.runs_dir = (folder_ / "runs").string();
    recipe_.data = DataOptions::named("random");
    recipe_.checkpoint.mirror = "file://" + (folder_ / "store").string();
  }
  // A run on one host keeps two checkpoints and their copies; files of those from `step` on are
  // found to differ. Then the host is lost.
  void lose_host_with_doubt_behind(std::int64_t step) const {
    make_folders(run_folder(recipe_));
    write_recipe(recipe_, {});
    auto mirror = CheckpointMirror::of(recipe_);
    for (const std::int64_t each : {3, 6}) {
      Manifest manifest;
      manifest.step = each;
      manifest.recipe = to_toml(recipe_);
      make_folders(checkpoints().step_folder(each));
      checkpoints().commit(manifest);
      mirror->copy(checkpoints(), each);
    }
    mirror->mark_doubtful(step + 1, kReason);
    fs::remove_all(folder_ / "runs");
  }
  std::optional<std::int64_t> restore(TakeDoubtful doubtful) {
    refused_.clear();
    return CheckpointMirror::of(recipe_)->restore(
        checkpoints(), [](const Manifest&) { return true; }, doubtful,
        [this](std::int64_t step, const std::string& problem) { refused_[step] = problem; });
  }
  [[nodiscard]] CheckpointFolder checkpoints() const { return checkpoints_of(recipe_); }

  TemporaryFolder folder_;
  Recipe recipe_;
  std::map<std::int64_t, std::string> refused_;
};

TEST_F(Mirrored, ARunGoesOnFromACopyThatIsNotInDoubt) {
  lose_host_with_doubt_behind(3);
  EXPECT_EQ(restore(TakeDoubtful::kNo), 3);
  EXPECT_THAT(refused_,
              testing::ElementsAre(testing::Pair(6, std::string("it is in doubt: ") + kReason)));
  EXPECT_THAT(checkpoints().steps(), testing::ElementsAre(3));
}

TEST_F(Mirrored, ACopyInDoubtIsTakenOnRequestAndStaysMarked) {
  lose_host_with_doubt_behind(3);
  EXPECT_EQ(restore(TakeDoubtful::kYes), 6);
  EXPECT_EQ(doubt_of(checkpoints().read(6)), kReason);
}

TEST_F(Mirrored, ARunWithoutAnyOtherIsRefusedRatherThanStartedAgain) {
  lose_host_with_doubt_behind(0);
  try {
    static_cast<void>(restore(TakeDoubtful::kNo));
    ADD_FAILURE() << "a copy was used";
  } catch (const DataError& error) {
    EXPECT_EQ(error.what(), "no copy of a checkpoint in '" + recipe_.checkpoint.mirror +
                                "/run' can be used: it is in doubt: " + kReason);
    EXPECT_THAT(error.hint(), testing::HasSubstr("--resume"));
  }
  EXPECT_TRUE(checkpoints().steps().empty());
}

TEST_F(Mirrored, NothingIsNoError) {
  EXPECT_EQ(restore(TakeDoubtful::kNo), std::nullopt);
}

}  // namespace
}  // namespace troika
