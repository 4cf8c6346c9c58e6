#include <gmock/gmock.h>
#include <troika/comm/failure/diagnosis.h>

namespace troika {
namespace {

using testing::HasSubstr;
using State = RecordedOperation::State;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 100 * kSecond;
const BlockedOperation kWait{"all_reduce 'gradients'", 7, 42, Seconds(60)};

Members four() {
  return {.axis = "data",
          .ranks = {0, 1, 2, 5},
          .hosts = {"a", "b", "a", "c"},
          .identities = {"a", "b", "a", "c"},
          .pids = {10, 4711, 12, 15},
          .index = 0,
          .generation = 3};
}

RecordedOperation operation(std::string name, std::string label, std::uint64_t place,
                            std::uint64_t signature, State state) {
  RecordedOperation made;
  made.operation = std::move(name);
  made.label = std::move(label);
  made.axis = "data";
  made.generation = 3;
  made.place = place;
  made.signature = signature;
  made.state = state;
  made.elements = 1000;
  made.dtype = "fp32";
  made.started = kNow - 62 * kSecond;
  if (state != State::kRunning) made.finished = kNow - 61 * kSecond;
  return made;
}

RankSnapshot snapshot(int pid, std::vector<RecordedOperation> operations,
                      ProcessState process = ProcessState::kSleeps) {
  RankSnapshot made;
  made.recording.process_id = pid;
  made.recording.created = 1;
  made.recording.operations = std::move(operations);
  made.process = process;
  made.taken = kNow;
  return made;
}

const RecordedOperation kLoss = operation("all_reduce", "loss", 6, 41, State::kFinished);
const RecordedOperation kOurs = operation("all_reduce", "gradients", 7, 42, State::kRunning);

TEST(Diagnosis, NamesTheRankThatHasNotEntered) {
  const std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kLoss, kOurs}), snapshot(4711, {kLoss}, ProcessState::kStopped),
      snapshot(12, {kLoss, kOurs}), snapshot(15, {kLoss, kOurs})};
  const Diagnosis found = diagnose(four(), kWait, snapshots, {2});
  EXPECT_EQ(
      found.message,
      "rank 1 (host b, pid 4711) has not entered all_reduce 'gradients' on axis data; ranks "
      "0, 2 and 5 have waited 1 min 00 s; it last completed all_reduce 'loss' 1 min 01 s ago");
  EXPECT_EQ(found.hint,
            "process 4711 is stopped (SIGSTOP, a debugger, a frozen container): kill "
            "-CONT 4711 lets it go on");
}

// It went from the first to the third: the same kind and shape, so that only the labels tell.
TEST(Diagnosis, NamesTheOperationThatARankHasLeftOut) {
  const RecordedOperation left_out = operation("all_reduce", "norm", 6, 41, State::kFinished);
  const std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {left_out, kOurs}), snapshot(4711, {kLoss}), snapshot(12, {left_out, kOurs}),
      snapshot(15, {left_out, kOurs})};
  const Diagnosis found = diagnose(four(), kWait, snapshots, {1});
  EXPECT_THAT(found.message,
              testing::EndsWith("; it last completed all_reduce 'loss' 1 min 01 s ago; its "
                                "operation 6 on axis data was all_reduce 'loss', where rank 0 was "
                                "in all_reduce 'norm'"));
  EXPECT_EQ(found.hint, kSameOperations);
}

TEST(Diagnosis, CountsThoseThatHaveNotEntered) {
  const std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kOurs}), snapshot(4711, {kLoss}), snapshot(12, {}), std::nullopt};
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              HasSubstr("rank 1 (host b, pid 4711) and 1 other rank have not entered all_reduce "
                        "'gradients' on axis data; rank 0 has waited"));
}

// A rank that is still in an earlier operation waits there for another rank.
TEST(Diagnosis, BlamesWhoWaitsForNobody) {
  const RecordedOperation held_up = operation("all_reduce", "loss", 6, 41, State::kRunning);
  std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kOurs}), snapshot(4711, {held_up}), snapshot(12, {kOurs}),
      snapshot(15, {held_up}, ProcessState::kStopped)};
  const Diagnosis stopped = diagnose(four(), kWait, snapshots, {1});
  EXPECT_THAT(stopped.message, HasSubstr("rank 5 (host c, pid 15) and 1 other rank have not"));
  EXPECT_THAT(stopped.hint, HasSubstr("kill -CONT 15"));
  EXPECT_FALSE(stopped.member_to_ask);
  snapshots[3] = snapshot(15, {kLoss});
  const Diagnosis absent = diagnose(four(), kWait, snapshots, {1});
  EXPECT_THAT(absent.message, HasSubstr("rank 5 (host c, pid 15) and 1 other rank have not"));
  EXPECT_FALSE(absent.member_to_ask);
  snapshots[3] = snapshot(15, {kOurs});
  EXPECT_EQ(diagnose(four(), kWait, snapshots, {1}).member_to_ask, 1);
}

// An operation of another axis or generation, or of another group of the axis, is no evidence, even
// at the same place.
TEST(Diagnosis, KeepsGroupsApart) {
  RecordedOperation before = kOurs, elsewhere = kOurs, twin = kOurs;
  before.generation = 2;
  elsewhere.axis = "tensor";
  twin.group = 5;
  const std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kOurs}), snapshot(4711, {before, elsewhere, twin}), snapshot(12, {kOurs}),
      snapshot(15, {kOurs})};
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              testing::AllOf(HasSubstr("rank 1 (host b, pid 4711) has not entered"),
                             HasSubstr("it is in all_reduce 'gradients' (axis data) for 1 min")));
}

TEST(Diagnosis, TellsAnotherOperationFromAnotherShape) {
  std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kOurs}),
      snapshot(4711, {operation("all_gather", "names", 7, 1, State::kRunning)}),
      snapshot(12, {kOurs}), snapshot(15, {kOurs})};
  const Diagnosis other = diagnose(four(), kWait, snapshots, {1});
  EXPECT_EQ(other.message,
            "rank 1 (host b, pid 4711) is in all_gather 'names' as operation 7 on axis data, where "
            "ranks 0, 2 and 5 entered all_reduce 'gradients'");
  EXPECT_EQ(other.hint, kSameOperations);
  EXPECT_TRUE(other.mutual);

  RecordedOperation shorter = operation("all_reduce", "gradients", 7, 2, State::kRunning);
  shorter.elements = 999;
  snapshots[1] = snapshot(4711, {shorter});
  EXPECT_EQ(diagnose(four(), kWait, snapshots, {1}).message,
            "rank 1 (host b, pid 4711) has entered all_reduce 'gradients' on axis data with 999 x "
            "fp32, and ranks 0, 2 and 5 with 1000 x fp32");

  shorter.elements = 1000;
  snapshots[1] = snapshot(4711, {shorter});
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              HasSubstr("with another root, reduction or cut than ranks 0, 2 and 5"));
}

TEST(Diagnosis, SuspectsThoseThatNothingHasComeFrom) {
  std::vector<std::optional<RankSnapshot>> snapshots(4, snapshot(1, {kOurs}));
  snapshots[3] = snapshot(15, {kOurs}, ProcessState::kStopped);
  const Diagnosis entered = diagnose(four(), kWait, snapshots, {3});
  EXPECT_THAT(entered.message,
              HasSubstr("rank 5 (host c, pid 15) has entered all_reduce 'gradients' on axis data "
                        "and stopped there; ranks 0, 1 and 2 have waited"));
  EXPECT_THAT(entered.hint, HasSubstr("kill -CONT 1"));

  snapshots[3].reset();
  EXPECT_EQ(diagnose(four(), kWait, snapshots, {3}).message,
            "nothing from rank 5 (host c, pid 15) in all_reduce 'gradients' on axis data; ranks 0, "
            "1 and 2 have waited 1 min 00 s");
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {3}).hint, HasSubstr("troika inspect"));
}

// A rank of this host without a flight recorder: its process can be looked at all the same.
TEST(Diagnosis, OfAProcessAlone) {
  std::vector<std::optional<RankSnapshot>> snapshots(4, snapshot(1, {kOurs}));
  snapshots[2] = RankSnapshot{};
  snapshots[2]->recording.process_id = 12;
  snapshots[2]->process = ProcessState::kRuns;
  Diagnosis found = diagnose(four(), kWait, snapshots, {2});
  EXPECT_EQ(found.message,
            "nothing from rank 2 (host a, pid 12) in all_reduce 'gradients' on axis data; ranks 0, "
            "1 and 5 have waited 1 min 00 s");
  EXPECT_THAT(found.hint, testing::AllOf(testing::StartsWith("process 12 is computing"),
                                         HasSubstr("TROIKA_RECORDERS")));

  // Also where it is another one that nothing has come from, as it waits for this one itself.
  snapshots[2]->process = ProcessState::kStopped;
  found = diagnose(four(), kWait, snapshots, {1});
  EXPECT_EQ(found.message,
            "rank 2 (host a, pid 12) is stopped, in or before all_reduce 'gradients' on axis data; "
            "ranks 0, 1 and 5 have waited 1 min 00 s");
  EXPECT_THAT(found.hint, HasSubstr("kill -CONT 12"));

  snapshots[2].reset();  // on this host there is nothing to inspect
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {2}).hint,
              testing::AllOf(HasSubstr("TROIKA_RECORDERS"), testing::Not(HasSubstr("inspect"))));
}

// Recorders keep 24 bytes of an axis and 64 of a label.
TEST(Diagnosis, ComparesWhatRecordersHaveCut) {
  Members members = four();
  members.axis = "an axis whose name is longer than that";
  const std::string label(70, 'l');
  BlockedOperation wait = kWait;
  wait.name = "all_reduce '" + label + "'";
  RecordedOperation ours = operation("all_reduce", label.substr(0, 64), 7, 42, State::kRunning);
  ours.axis = members.axis.substr(0, 24);
  RecordedOperation shorter = ours;
  shorter.elements = 999;
  shorter.signature = 2;
  std::vector<std::optional<RankSnapshot>> snapshots(4, snapshot(1, {ours}));
  EXPECT_THAT(diagnose(members, wait, snapshots, {1}).message, HasSubstr("and stopped there"));
  snapshots[1] = snapshot(4711, {shorter});
  EXPECT_THAT(diagnose(members, wait, snapshots, {1}).message, HasSubstr("with 999 x fp32"));
  snapshots[0].reset();  // without a record of our own to compare with
  EXPECT_THAT(diagnose(members, wait, snapshots, {1}).message, HasSubstr("with 999 x fp32"));
}

// A rank in a later operation of the group has been in ours, though no record tells any more.
TEST(Diagnosis, DoesNotBlameWhoIsAhead) {
  const RecordedOperation later = operation("all_reduce", "later", 9, 50, State::kRunning);
  std::vector<std::optional<RankSnapshot>> snapshots = {
      snapshot(10, {kOurs}), snapshot(4711, {later}), snapshot(12, {kLoss}), snapshot(15, {kOurs})};
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              testing::StartsWith("rank 2 (host a, pid 12) has not entered"));
  snapshots[2] = snapshot(12, {kOurs});
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1, 2}).message,
              HasSubstr("rank 2 (host a, pid 12) has entered"));
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              testing::AllOf(testing::StartsWith("nothing from rank 1 (host b, pid 4711)"),
                             HasSubstr("it is in all_reduce 'later'")));
  // Of another group it says nothing.
  RecordedOperation elsewhere = later;
  elsewhere.axis = "tensor";
  snapshots[1] = snapshot(4711, {elsewhere});
  EXPECT_THAT(diagnose(four(), kWait, snapshots, {1}).message,
              testing::StartsWith("rank 1 (host b, pid 4711) has not entered"));
}

// Only some take part in an exchange, so who has not entered it may have no need to.
TEST(Diagnosis, OfAnExchange) {
  const std::vector<std::optional<RankSnapshot>> snapshots(
      4, snapshot(4711, {kLoss}, ProcessState::kRuns));
  const BlockedOperation wait{"exchange 'activations'", 0, 0, Seconds(2)};
  const Diagnosis found = diagnose(four(), wait, snapshots, {1});
  EXPECT_EQ(found.message,
            "nothing from rank 1 (host b, pid 4711) in exchange 'activations' on axis data; rank 0 "
            "has waited 2.0 s; it last completed all_reduce 'loss' 1 min 01 s ago");
  EXPECT_THAT(found.hint, HasSubstr("process 4711 is computing"));
  EXPECT_THAT(found.hint, HasSubstr("comm.timeout_seconds, SessionOptions::timeout"));
}

}  // namespace
}  // namespace troika
