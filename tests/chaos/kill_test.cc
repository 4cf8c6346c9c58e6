// A writer of checkpoints that is killed in a phase, on a machine that then loses its power.
// TROIKA_CHAOS_KILLS is the number of kills a phase.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <chaos/power_loss.h>
#include <chaos/scenes.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/checkpoint/state_reader.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <ostream>
#include <random>
#include <span>

namespace troika::chaos {
namespace {

// What the writer, a process of its own, leaves.
struct Shared {
  Record record;
  std::atomic<std::int64_t> committed;  // the step of the last commit() that has returned
};

struct Unmap {
  void operator()(Shared* shared) const { ::munmap(shared, sizeof(Shared)); }
};
using SharedMemory = std::unique_ptr<Shared, Unmap>;

SharedMemory shared_memory() {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return SharedMemory(static_cast<Shared*>(memory));  // zeros
}

std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& /*function*/) {
  count_copy();
  return nullptr;
}

// Takes two checkpoints. Each operator of ATen while values are copied is a call of the phase
// kCopy.
[[noreturn]] void write(const Stage& stage, Shared& shared, const Plan& plan) {
  const CheckpointFolder checkpoints = Stage::checkpoints_in(stage.live());
  watch(&shared.record, plan, stage.live().c_str(), stage.graves().c_str());
  at::addGlobalCallback(at::RecordFunctionCallback(count_operator));
  for (const std::int64_t step : {kNext, kAfterNext}) {
    take_checkpoint(checkpoints, step, "now", [&] { shared.committed = step; });
  }
  _exit(0);
}

class Trial {
 public:
  Trial(const Stage& stage, Scene scene, const Plan& plan) : stage_(stage), scene_(scene) {
    stage_.set(scene);
    before_.emplace(stage_.live(), stage_.graves());
    shared_ = shared_memory();
    shared_->committed = Stage::newest_of(scene);
    const pid_t writer = ::fork();
    if (writer == 0) write(stage_, *shared_, plan);
    EXPECT_EQ(::waitpid(writer, &status_, 0), writer);
  }

  [[nodiscard]] const Record& record() const { return shared_->record; }
  [[nodiscard]] bool was_killed() const {
    return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL;
  }
  [[nodiscard]] bool has_ended() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

  // The machine comes up again, and the run goes on.
  void expect_nothing_lost(Unsynced unsynced, std::uint64_t seed) {
    before_->replay(record());
    before_->rebuild(stage_.after(), unsynced, seed);
    const CheckpointFolder checkpoints = Stage::checkpoints_in(stage_.after());
    expect_committed(checkpoints);
    expect_next(checkpoints);
  }

  // The run goes on at once, and the machine loses its power later.
  void expect_nothing_lost_later() {
    const CheckpointFolder checkpoints = Stage::checkpoints_in(stage_.live());
    expect_committed(checkpoints);
    const auto later = std::make_unique<Record>();
    watch(later.get(), {}, stage_.live().c_str(), stage_.graves().c_str());
    expect_next(checkpoints);
    watch(nullptr, {});
    before_->replay(record());
    before_->replay(*later);
    before_->rebuild(stage_.after(), Unsynced::kLost, 0);
    EXPECT_EQ(difference_of_newest(Stage::checkpoints_in(stage_.after()), kLast), "");
  }

 private:
  void expect_committed(const CheckpointFolder& checkpoints) const {
    const std::vector<std::int64_t> steps = checkpoints.steps();
    if (shared_->committed > 0) {
      ASSERT_FALSE(steps.empty());
      EXPECT_GE(steps.front(), shared_->committed);
    }
    // Older ones are removed only for newer ones.
    EXPECT_GE(std::ssize(steps), scene_ == Scene::kNone ? 0 : kKeep);
    for (const std::int64_t step : steps) {
      verify_shards(checkpoints.step_folder(step), checkpoints.read(step));
    }
    const std::string difference =
        steps.empty() ? "" : difference_of_newest(checkpoints, steps.front());
    EXPECT_EQ(difference, "");
  }

  // A next checkpoint can be taken, and nothing is left of what was begun.
  static void expect_next(const CheckpointFolder& checkpoints) {
    take_checkpoint(checkpoints, kLast, "later");
    EXPECT_EQ(difference_of_newest(checkpoints, kLast), "");
    const std::vector<std::int64_t> steps = checkpoints.steps();
    EXPECT_LE(std::ssize(steps), kKeep);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(checkpoints.path()), {}),
              std::ssize(steps));
    EXPECT_EQ(
        std::distance(std::filesystem::directory_iterator(checkpoints.step_folder(kLast)), {}),
        kRanks + 1);
  }

  const Stage& stage_;
  Scene scene_;
  std::optional<PowerLoss> before_;
  SharedMemory shared_;
  int status_ = 0;
};

int kills_a_phase() {
  const char* const asked = std::getenv("TROIKA_CHAOS_KILLS");
  return asked == nullptr ? 50 : static_cast<int>(std::strtol(asked, nullptr, 10));
}

class Kills : public testing::TestWithParam<Phase> {
 protected:
  static void SetUpTestSuite() {
    // A process that is forked has no other threads of OpenMP.
    at::set_num_threads(1);
    stage = std::make_unique<Stage>();
  }
  static void TearDownTestSuite() { stage.reset(); }

  inline static std::unique_ptr<Stage> stage;
};

// What happens behind a kill.
enum class After { kPowerLost, kPowerLostTorn, kGoesOn };

struct Kill {
  Scene scene;
  Plan plan;
  After after;
};

// `calls` has the number of the phase's calls in each scene.
Kill draw(Phase phase, std::span<const int> calls, std::mt19937_64& random) {
  Kill kill{};
  do {
    kill.scene = static_cast<Scene>(random() % kScenes);  // some have nothing to clean up
  } while (calls[static_cast<std::size_t>(kill.scene)] == 0);
  const auto most = static_cast<std::uint64_t>(calls[static_cast<std::size_t>(kill.scene)]);
  kill.plan = {.action = Action::kKill, .phase = phase};
  kill.plan.number = static_cast<int>(random() % most);
  kill.plan.share = std::uniform_real_distribution<double>(0, 1)(random);
  kill.after = static_cast<After>(random() % 3);
  return kill;
}

std::ostream& operator<<(std::ostream& out, const Kill& kill) {
  return out << "scene " << static_cast<int>(kill.scene) << ", call " << kill.plan.number
             << ", share " << kill.plan.share << ", after it " << static_cast<int>(kill.after);
}

TEST_P(Kills, LoseNothingThatWasCommitted) {
  int calls[kScenes];
  for (int scene = 0; scene < kScenes; ++scene) {
    Trial undisturbed(*stage, static_cast<Scene>(scene), {});
    ASSERT_TRUE(undisturbed.has_ended());
    calls[scene] = undisturbed.record().counts[static_cast<int>(GetParam())];
    undisturbed.expect_nothing_lost(Unsynced::kLost, 0);
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < kills_a_phase() && !HasFailure(); ++i) {
    const Kill kill = draw(GetParam(), calls, random);
    SCOPED_TRACE(testing::Message() << "kill " << i << ": " << kill);
    Trial trial(*stage, kill.scene, kill.plan);
    ASSERT_TRUE(trial.was_killed());
    if (kill.after == After::kGoesOn) {
      trial.expect_nothing_lost_later();
    } else {
      const bool is_torn = kill.after == After::kPowerLostTorn;
      trial.expect_nothing_lost(is_torn ? Unsynced::kTorn : Unsynced::kLost, random());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, Kills,
                         testing::Values(Phase::kCopy, Phase::kWrite, Phase::kFsync, Phase::kRename,
                                         Phase::kCommit, Phase::kCleanUp),
                         [](const auto& phase) { return name_of(phase.param); });

}  // namespace
}  // namespace troika::chaos
