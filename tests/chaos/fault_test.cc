// Disks that are full, that fail or are read-only, writes that are short, checkpoints that are
// deleted while they are read: one clear error, what was there stays, and the next one works.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <chaos/power_loss.h>
#include <chaos/scenes.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/base/file.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>
#include <system_error>

namespace troika::chaos {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr unsigned kTakesSpace = bit(Kind::kMakeFolder) | bit(Kind::kCreate) | bit(Kind::kWrite);
constexpr unsigned kChanges =
    kTakesSpace | bit(Kind::kRename) | bit(Kind::kRemove) | bit(Kind::kRemoveFolder);

struct Fault {
  const char* name;
  int error;
  unsigned at;     // kinds of calls that may be the first to fail
  unsigned later;  // and that then go on to fail
};
constexpr Fault kFaults[] = {
    {"a_full_disk", ENOSPC, kTakesSpace, kTakesSpace},
    {"a_quota", EDQUOT, bit(Kind::kWrite) | bit(Kind::kClose), 0},
    {"a_read_only_folder", EROFS, kChanges, kChanges},
    {"a_failed_sync", EIO, bit(Kind::kSync) | bit(Kind::kSyncFolder), 0},
    {"a_failed_write", EIO, bit(Kind::kWrite), 0},
    {"missing_rights", EACCES, kChanges, 0},
};

class Faults : public testing::TestWithParam<Fault> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    stage = std::make_unique<Stage>();
  }
  static void TearDownTestSuite() { stage.reset(); }

  void TearDown() override { watch(nullptr, {}); }

  void begin(Scene scene) {
    watch(nullptr, {});
    stage->set(scene);
    before_.emplace(stage->live(), stage->graves());
    record_ = std::make_unique<Record>();
  }
  void set(const Plan& plan) {
    watch(record_.get(), plan, stage->live().c_str(), stage->graves().c_str());
  }
  [[nodiscard]] static CheckpointFolder checkpoints() {
    return Stage::checkpoints_in(stage->live());
  }
  // Returns what went wrong with the next checkpoint; empty where nothing did.
  std::string take_next() {
    is_committed_ = false;
    try {
      take_checkpoint(checkpoints(), kNext, "now", [this] { is_committed_ = true; });
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  }
  [[nodiscard]] std::span<const Operation> operations() const {
    return {record_->operations, static_cast<std::size_t>(record_->operations_count)};
  }

  void expect_clear(const std::string& message, int error) const {
    EXPECT_THAT(message, HasSubstr(std::generic_category().message(error)));
    EXPECT_THAT(message, HasSubstr("'" + stage->live().string()));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
  // After an fsync that has failed the system may have dropped the bytes, and say so only once.
  void expect_no_second_sync() const {
    std::vector<std::uint64_t> failed;
    for (const Operation& each : operations()) {
      const bool is_one = std::ranges::count(failed, each.file) > 0;
      EXPECT_FALSE(each.kind == Kind::kSync && is_one) << each.path;
      if (each.kind == Kind::kSyncFailed) failed.push_back(each.file);
    }
  }
  void expect_nothing_half_written() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(stage->live())) {
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp-"))) << entry.path();
    }
  }
  // The fault is mended, a next one is taken, and the machine loses its power.
  void expect_next() {
    watch(record_.get(), {}, stage->live().c_str(), stage->graves().c_str());
    take_checkpoint(checkpoints(), kAfterNext, "now");
    watch(nullptr, {});
    EXPECT_EQ(difference_of_newest(checkpoints(), kAfterNext), "");
    before_->replay(*record_);
    before_->rebuild(stage->after(), Unsynced::kLost, 0);
    EXPECT_EQ(difference_of_newest(Stage::checkpoints_in(stage->after()), kAfterNext), "");
  }

  inline static std::unique_ptr<Stage> stage;
  std::optional<PowerLoss> before_;
  std::unique_ptr<Record> record_;
  bool is_committed_ = false;
};

TEST_P(Faults, KeepWhatWasThere) {
  const Fault& fault = GetParam();
  for (const Scene scene : {Scene::kTwo, Scene::kNone}) {
    begin(scene);
    set({});
    ASSERT_EQ(take_next(), "");
    int calls[kPhases] = {};
    int faults = 0;
    const std::vector<Operation> undisturbed(operations().begin(), operations().end());
    for (const Operation& call : undisturbed) {
      const int number = calls[static_cast<int>(call.phase)]++;
      if ((fault.at & bit(call.kind)) == 0) continue;
      SCOPED_TRACE(std::string(name_of(call.phase)) + " " + std::to_string(number) + " " +
                   call.path);
      begin(scene);
      set({.action = Action::kFail,
           .phase = call.phase,
           .number = number,
           .error = fault.error,
           .kinds = fault.later});
      const std::string message = take_next();
      EXPECT_TRUE(record_->carried_out);
      watch(nullptr, {});
      ++faults;
      expect_clear(message, fault.error);
      expect_no_second_sync();
      if (fault.error != EROFS) expect_nothing_half_written();
      const std::vector<std::int64_t> steps = checkpoints().steps();
      const std::int64_t newest = is_committed_ ? kNext : Stage::newest_of(scene);
      // What failed may have been the sync of a manifest that is there.
      const bool is_there = !steps.empty() && steps.front() == kNext;
      if (newest > 0 || is_there) {
        EXPECT_EQ(difference_of_newest(checkpoints(), is_there ? kNext : newest), "");
      }
      expect_next();
      if (HasFailure()) return;
    }
    EXPECT_GT(faults, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Faults, testing::ValuesIn(kFaults),
                         [](const auto& fault) { return fault.param.name; });

using ShortWrites = Faults;

TEST_F(ShortWrites, AreContinued) {
  for (const std::uint64_t bytes : {100'000, 9'999}) {
    begin(Scene::kTwo);
    set({.longest_write = bytes});
    EXPECT_EQ(take_next(), "");
    const auto writes = static_cast<std::uint64_t>(
        std::ranges::count(operations(), Kind::kWrite, &Operation::kind));
    EXPECT_GT(writes, 1'000'000 / bytes);
    expect_next();
  }
}

using DeletedCheckpoint = Faults;

// At each file that is opened, another process removes its folder.
TEST_F(DeletedCheckpoint, IsAClearErrorOfWhoReadsIt) {
  begin(Scene::kTwo);
  set({});
  ASSERT_EQ(difference_of_newest(checkpoints(), kNewest), "");
  const int opened = record_->counts[static_cast<int>(Phase::kRead)];
  ASSERT_GE(opened, 1 + 2 * kRanks);
  for (int number = 0; number < opened; ++number) {
    begin(Scene::kTwo);
    set({.action = Action::kDelete, .phase = Phase::kRead, .number = number});
    std::string problem;
    try {
      problem = difference_of_newest(checkpoints(), kNewest);
    } catch (const DataError& error) {
      problem = error.what();
    }
    EXPECT_TRUE(record_->carried_out);
    EXPECT_THAT(problem, HasSubstr("No such file or directory"));
    EXPECT_THAT(problem, Not(HasSubstr("\n")));
    // It is seen before anything is read of it, or what is read is whole: then the one before is.
    set({});
    EXPECT_EQ(difference_of_newest(checkpoints(), kOlder), "");
  }
}

}  // namespace
}  // namespace troika::chaos
