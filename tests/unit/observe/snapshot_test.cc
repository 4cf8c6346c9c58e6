#include <gmock/gmock.h>
#include <signal.h>
#include <support/temporary_folder.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/observe/snapshot.h>
#include <unistd.h>

namespace troika {
namespace {

constexpr std::int64_t kLongAgo = 1'000'000'000;

// A child of this process that waits to be killed. posix_spawn-like: it runs no code of ours.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] int pid() const { return pid_; }

 private:
  pid_t pid_;
};

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

TEST(ProcessState, TellsWhatAProcessIsDoing) {
  EXPECT_EQ(process_state(::getpid(), now()), ProcessState::kRuns);
  const Child child;
  ::kill(child.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, WUNTRACED), child.pid());
  EXPECT_EQ(process_state(child.pid(), now()), ProcessState::kStopped);
  ::kill(child.pid(), SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child.pid(), now()), ProcessState::kEnded);  // a zombie
  EXPECT_EQ(process_state(0, now()), ProcessState::kEnded);
}

TEST(ProcessState, AnIdThatWasGivenAgainIsNotTheProcessThatHadIt) {
  EXPECT_EQ(process_state(::getpid(), kLongAgo), ProcessState::kEnded);
}

TEST(Snapshot, GoesThroughTheStore) {
  const TemporaryFolder folder;
  const auto path = recorder_path(folder.path(), 3);
  EXPECT_FALSE(take_snapshot(path));
  const auto recorder = Recorder::create(path, 3, "node7");
  recorder->begin({"all_reduce", "data", "stays", 4});
  for (int i = 0; i < 200; ++i) recorder->end(recorder->begin({"barrier", "data", "step", 0}));
  recorder->end(
      recorder->begin({"all_reduce", "data", "a \"label\"", 40, 10, "fp32", 3, 2, ~0ull}));
  const auto taken = take_snapshot(path);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->recording.operations.size(), 202u);
  const RankSnapshot snapshot = decode_snapshot(encode(*taken));
  EXPECT_EQ(encode(snapshot), encode(*taken));
  EXPECT_EQ(snapshot.recording.rank, 3);
  EXPECT_EQ(snapshot.recording.process_id, ::getpid());
  EXPECT_EQ(snapshot.recording.host, "node7");
  EXPECT_EQ(snapshot.process, ProcessState::kRuns);
  const auto& operations = snapshot.recording.operations;
  ASSERT_EQ(operations.size(), 65u);  // the one that is running, and the last 64
  EXPECT_EQ(operations.front().label, "stays");
  EXPECT_EQ(operations.back().label, "a \"label\"");
  EXPECT_EQ(operations.back().signature, ~0ull);
  EXPECT_EQ(operations.back().place, 3u);
}

TEST(Snapshot, OfAProcessAlone) {
  const RankSnapshot snapshot = decode_snapshot(encode(look_at_process(3, ::getpid())));
  EXPECT_FALSE(snapshot.recorded());
  EXPECT_EQ(snapshot.recording.rank, 3);
  EXPECT_EQ(snapshot.recording.process_id, ::getpid());
  EXPECT_EQ(snapshot.process, ProcessState::kRuns);
  EXPECT_EQ(look_at_process(3, 1 << 30).process, ProcessState::kEnded);  // more than any pid
}

TEST(Snapshot, RefusesWhatIsNone) {
  for (const char* text : {"", "{}", "[1]", "{\"process\": 99}", "{\"process\": \"x\"}"}) {
    EXPECT_THROW((void)decode_snapshot(text), DataError) << text;
  }
}

TEST(Snapshot, SaysWhatTheRankDidLast) {
  RankSnapshot snapshot;
  snapshot.taken = 70'000'000'000;
  EXPECT_EQ(describe_last_operation(snapshot), "it keeps no flight recorder");
  snapshot.recording.created = 1;
  EXPECT_EQ(describe_last_operation(snapshot), "it has begun no operation");
  RecordedOperation loss;
  loss.operation = "all_reduce";
  loss.label = "loss";
  loss.state = RecordedOperation::State::kFinished;
  loss.finished = 9'000'000'000;
  RecordedOperation earlier = loss;
  earlier.label = "bucket";
  earlier.finished = 8'000'000'000;
  snapshot.recording.operations = {loss, earlier};
  EXPECT_EQ(describe_last_operation(snapshot),
            "it last completed all_reduce 'loss' 1 min 01 s ago");
  earlier.state = RecordedOperation::State::kRunning;
  earlier.axis = "tensor";
  earlier.started = 10'000'000'000;
  snapshot.recording.operations.push_back(earlier);
  EXPECT_EQ(describe_last_operation(snapshot),
            "it is in all_reduce 'bucket' (axis tensor) for 1 min 00 s");
  snapshot.process = ProcessState::kEnded;
  EXPECT_EQ(describe_last_operation(snapshot),
            "it was in all_reduce 'bucket' (axis tensor) when it ended");
}

}  // namespace
}  // namespace troika
