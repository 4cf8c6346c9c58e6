// The newest checkpoint that all ranks can read, where they share a folder, and where each host has
// a copy of its own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/temporary_folder.h>
#include <troika/base/error.h>
#include <troika/checkpoint/find_newest.h>
#include <troika/checkpoint/state_writer.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 2;

// Each of two ranks has written a file.
void write_checkpoint(const CheckpointFolder& folder, std::int64_t step, double value) {
  Manifest manifest;
  manifest.step = step;
  manifest.numbers = {{"step", step}};
  for (int rank = 0; rank < kRanks; ++rank) {
    StateDict state;
    state.add(std::to_string(rank), {{3}, {0, 0, 3}, 0, 3, 3}, at::full({3}, value));
    StateWriter writer;
    writer.begin(state, folder.step_folder(step), std::to_string(rank) + ".safetensors");
    const ShardReport report = writer.wait();
    ASSERT_EQ(report.error, "");
    manifest.tensors.insert(report.tensors.begin(), report.tensors.end());
    manifest.shards.push_back(report.shard);
  }
  folder.commit(manifest);
}

void flip_last_bit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

// What both ranks, threads here, have found: the step, or the error, of each; and the problems that
// rank 0 has heard of.
struct Found {
  std::vector<std::string> outcomes = std::vector<std::string>(kRanks);
  std::vector<std::string> damaged;
};

Found find(const std::vector<std::filesystem::path>& folders) {
  Found found;
  std::vector<std::string> texts(kRanks);
  std::barrier barrier(kRanks);
  const auto run = [&](int rank) {
    const auto self = static_cast<std::size_t>(rank);
    CheckpointReaders readers;
    readers.rank = rank;
    readers.size = kRanks;
    readers.gather = [&](const std::string& text) {
      texts[self] = text;
      barrier.arrive_and_wait();
      const std::vector<std::string> all = texts;
      barrier.arrive_and_wait();
      return all;
    };
    readers.name_of = [](int other) { return "rank " + std::to_string(other); };
    try {
      const auto reader =
          open_newest(CheckpointFolder(folders[self]), readers,
                      [&](std::int64_t step, const std::string& problem) {
                        found.damaged.push_back(std::to_string(step) + ": " + problem);
                      });
      found.outcomes[self] = reader ? std::to_string(reader->manifest().step) : "none";
    } catch (const DataError& error) {
      found.outcomes[self] = error.what();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return found;
}

class FindNewest : public testing::Test {
 protected:
  FindNewest() {
    for (const std::int64_t step : {1, 2}) {
      write_checkpoint(CheckpointFolder(shared_), step, static_cast<double>(step));
    }
    std::filesystem::copy(shared_, copy_, std::filesystem::copy_options::recursive);
  }

  TemporaryFolder temporary_;
  std::filesystem::path shared_ = temporary_.path() / "shared";
  std::filesystem::path copy_ = temporary_.path() / "copy";
};

TEST_F(FindNewest, TakesTheNewestInAFolderThatAllSee) {
  const Found found = find({shared_, shared_});
  EXPECT_THAT(found.outcomes, ElementsAre("2", "2"));
  EXPECT_THAT(found.damaged, IsEmpty());
}

TEST_F(FindNewest, ComparesEachFileOfASharedFolderOnSomeRank) {
  for (const char* file : {"0.safetensors", "1.safetensors"}) {
    const std::filesystem::path path = shared_ / step_name(2) / file;
    flip_last_bit(path);
    const Found found = find({shared_, shared_});
    EXPECT_THAT(found.outcomes, ElementsAre("1", "1"));
    EXPECT_THAT(found.damaged, ElementsAre(HasSubstr(file)));
    flip_last_bit(path);
  }
}

// Rank 1 finds a damaged file in the copy of its own host, whichever file that is.
TEST_F(FindNewest, ComparesEveryFileOfEachHostsCopy) {
  for (const char* file : {"0.safetensors", "1.safetensors"}) {
    const std::filesystem::path path = copy_ / step_name(2) / file;
    flip_last_bit(path);
    const Found found = find({shared_, copy_});
    EXPECT_THAT(found.outcomes, ElementsAre("1", "1"));
    EXPECT_THAT(found.damaged, ElementsAre(HasSubstr("2: rank 1: ")));
    EXPECT_THAT(found.damaged, ElementsAre(HasSubstr(file)));
    flip_last_bit(path);
  }
  EXPECT_THAT(find({shared_, copy_}).outcomes, ElementsAre("2", "2"));
}

TEST_F(FindNewest, RefusesCopiesOfDifferentCheckpoints) {
  std::filesystem::remove_all(copy_ / step_name(2));
  write_checkpoint(CheckpointFolder(copy_), 2, 7);
  const Found found = find({shared_, copy_});
  EXPECT_THAT(found.outcomes, ElementsAre("1", "1"));
  EXPECT_THAT(found.damaged,
              ElementsAre(HasSubstr("is not the checkpoint that rank 0 has by that name")));
}

TEST_F(FindNewest, LeavesACheckpointThatARankDoesNotSee) {
  std::filesystem::remove_all(copy_ / step_name(2));
  EXPECT_THAT(find({shared_, copy_}).outcomes, ElementsAre("1", "1"));
  std::filesystem::remove_all(copy_);
  const Found found = find({shared_, copy_});
  EXPECT_THAT(found.outcomes[0], HasSubstr("can be used"));
  EXPECT_THAT(found.outcomes[1], HasSubstr("can be used"));
}

}  // namespace
}  // namespace troika
