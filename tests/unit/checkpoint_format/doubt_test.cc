// Marks of what is in doubt: on checkpoints here and behind a URL, and beside a model's file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/base/file.h>
#include <troika/checkpoint/doubt.h>

namespace troika {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReason = "rank 1 on host b has other data";

void commit_step(const CheckpointFolder& folder, std::int64_t step) {
  Manifest manifest;
  manifest.step = step;
  manifest.provenance["ranks"] = "2";
  if (!folder.store()) make_folders(folder.step_folder(step));
  folder.commit(manifest);
}

std::vector<std::int64_t> doubtful_steps(const CheckpointFolder& folder) {
  std::vector<std::int64_t> steps;
  for (const std::int64_t step : folder.steps()) {
    if (!doubt_of(folder.read(step)).empty()) steps.push_back(step);
  }
  return steps;
}

TEST(Doubt, IsOfCheckpointsBehindAStepWhereverTheyLie) {
  const TemporaryFolder temporary;
  for (const std::string& place :
       {(temporary / "here").string(), "file://" + (temporary / "store").string()}) {
    const CheckpointFolder folder(place);
    for (const std::int64_t step : {2, 4, 6, 8}) commit_step(folder, step);
    int checks = 0;
    mark_doubtful(folder, 5, kReason, [&] { ++checks; });
    EXPECT_THAT(doubtful_steps(folder), testing::ElementsAre(8, 6)) << place;
    EXPECT_EQ(checks, folder.store() ? 2 : 0);
    EXPECT_EQ(doubt_of(folder.step_folder(8)), kReason);
    EXPECT_EQ(doubt_of(folder.step_folder(4)), "");
    EXPECT_EQ(folder.read(8).provenance.at("ranks"), "2");
    EXPECT_EQ(objection_to(folder.read(8), TakeDoubtful::kNo),
              std::string("it is in doubt: ") + kReason);
    EXPECT_EQ(objection_to(folder.read(8), TakeDoubtful::kYes), "");
    EXPECT_EQ(objection_to(folder.read(4), TakeDoubtful::kNo), "");
  }
}

TEST(Doubt, IsMarkedWhereItCanBeThoughOneCheckpointIsDamaged) {
  const TemporaryFolder temporary;
  const CheckpointFolder folder(temporary.path());
  for (const std::int64_t step : {2, 4, 6}) commit_step(folder, step);
  write_file_atomically(folder.step_folder(4) / "manifest.json", "{}");
  EXPECT_THROW(mark_doubtful(folder, 1, kReason), DataError);
  EXPECT_EQ(doubt_of(folder.read(6)), kReason);
  EXPECT_EQ(doubt_of(folder.read(2)), kReason);
}

TEST(Doubt, OfAnEncryptedCheckpointIsAuthenticatedAsItsManifestIs) {
  const TemporaryFolder temporary;
  write_file_atomically(temporary / "key", std::string(64, '5'));
  const auto key = key_from("file:" + (temporary / "key").string(), "a test");
  ASSERT_TRUE(key);
  const CheckpointFolder folder(temporary / "checkpoints", key);
  commit_step(folder, 1);
  mark_doubtful(folder, 1, kReason);
  EXPECT_EQ(doubt_of(folder.read(1)), kReason);
  EXPECT_TRUE(key_of(folder.read(1), "a test"));
}

TEST(Doubt, OfAModelLiesBesideItsFile) {
  const TemporaryFolder temporary;
  const fs::path model = temporary / "best.safetensors";
  write_file_atomically(model, "");
  EXPECT_EQ(doubt_of(model), "");
  mark_doubtful(model, kReason);
  EXPECT_EQ(doubt_of(model), kReason);
  clear_doubt(model);
  clear_doubt(model);  // of none is no error
  EXPECT_EQ(doubt_of(model), "");
}

}  // namespace
}  // namespace troika
