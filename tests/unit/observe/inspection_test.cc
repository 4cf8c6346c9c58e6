#include <gmock/gmock.h>
#include <support/temporary_folder.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/observe/inspection.h>
#include <troika/observe/machine.h>
#include <troika/observe/saved_error.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace troika {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Run : public testing::Test {
 protected:
  std::shared_ptr<Recorder> rank(int number, std::string_view host) {
    return Recorder::create(recorder_path(folder_.path(), number), number, host);
  }
  static std::uint64_t begin(Recorder& recorder, std::string_view label, std::uint64_t place,
                             std::uint64_t signature = 1, std::uint32_t group = 0) {
    return recorder.begin(
        {"all_reduce", "data", label, 40, 10, "fp32", place, 0, signature, group});
  }
  [[nodiscard]] Inspection inspect() const { return inspect_run(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(Run, ShowsWhoHasNotEntered) {
  const auto first = rank(0, host_name()), second = rank(1, host_name());
  for (const auto& recorder : {first, second}) recorder->end(begin(*recorder, "loss", 1));
  begin(*first, "bucket 3", 2);
  const Inspection inspection = inspect();
  EXPECT_THAT(
      differences(inspection),
      ElementsAre("rank 1 has not entered all_reduce 'bucket 3' (operation 2 on axis data); "
                  "rank 0 has"));
  const std::string text = to_text(inspection, 10);
  EXPECT_THAT(text, HasSubstr("it is in all_reduce 'bucket 3' (axis data) for "));
  EXPECT_THAT(text, HasSubstr("it last completed all_reduce 'loss' "));
  EXPECT_THAT(text, testing::ContainsRegex("2 +all_reduce 'bucket 3' +for [^ ]+ [^ ]+ +-\n"));
  EXPECT_THAT(text, testing::ContainsRegex("1 +all_reduce 'loss' +took [^ ]+ [^ ]+ +took "));
  EXPECT_THAT(text, HasSubstr(" runs "));  // this process
}

TEST_F(Run, ShowsWhoIsInAnotherOperation) {
  begin(*rank(0, "a"), "weights", 1, 7);
  begin(*rank(1, "b"), "gradients", 1, 8);
  begin(*rank(2, "c"), "weights", 1, 7);
  EXPECT_THAT(differences(inspect()),
              ElementsAre("operation 1 on axis data differs: ranks 0, 2 all_reduce 'weights' (10 x "
                          "fp32); rank 1 all_reduce 'gradients' (10 x fp32)"));
}

// As of a pipeline whose stages have a data axis each.
TEST_F(Run, TellsTheGroupsOfAnAxisApart) {
  const auto first = rank(0, "a"), second = rank(1, "a"), third = rank(2, "a"),
             fourth = rank(3, "a");
  for (const auto& recorder : {first, second}) {
    recorder->end(begin(*recorder, "bucket 0", 1, 7, 100));
    recorder->end(begin(*recorder, "bucket 1", 2, 7, 100));
  }
  for (const auto& recorder : {third, fourth}) recorder->end(begin(*recorder, "head", 1, 8, 200));
  EXPECT_THAT(differences(inspect()), ElementsAre());
  const std::string text = to_text(inspect(), 10);
  EXPECT_THAT(text, HasSubstr("axis data of ranks 0, 1 "));
  EXPECT_THAT(text, HasSubstr("axis data of ranks 2, 3 "));
  begin(*fourth, "tail", 2, 8, 200);
  EXPECT_THAT(differences(inspect()),
              ElementsAre("rank 2 has not entered all_reduce 'tail' (operation 2 on axis data of "
                          "ranks 2, 3); rank 3 has"));
}

TEST_F(Run, NumbersTheGroupsThatTheSameRanksHaveMadeOfAnAxis) {
  const auto first = rank(0, "a"), second = rank(1, "a");
  for (const std::uint32_t group : {900, 30}) {  // numbers are in no order
    for (const auto& recorder : {first, second}) {
      recorder->end(begin(*recorder, group == 900 ? "earlier" : "later", 1, 7, group));
    }
  }
  begin(*first, "last", 2, 7, 30);
  EXPECT_THAT(differences(inspect()),
              ElementsAre("rank 1 has not entered all_reduce 'last' (operation 2 on axis data of "
                          "ranks 0, 1, group 2 of 2); rank 0 has"));
  EXPECT_THAT(to_text(inspect(), 10),
              testing::ContainsRegex("axis data of ranks 0, 1, group 1 of 2 .*\n.*'earlier'"));
}

TEST_F(Run, ShowsTheLastOnes) {
  const auto recorder = rank(3, "elsewhere");
  for (unsigned i = 1; i <= 9; ++i) recorder->end(begin(*recorder, "n" + std::to_string(i), i));
  const Inspection inspection = inspect();
  EXPECT_TRUE(differences(inspection).empty());
  const std::string text = to_text(inspection, 2);
  EXPECT_THAT(text, testing::Not(HasSubstr("'n7'")));
  EXPECT_THAT(text, HasSubstr("'n8'"));
  EXPECT_THAT(text, HasSubstr("all ranks have entered the same operations"));
  EXPECT_THAT(text, HasSubstr(" ? "));  // no process of this host
  const auto json = nlohmann::json::parse(to_json(inspection));
  EXPECT_EQ(json.at("ranks").at(0).at("operations").size(), 9u);
  EXPECT_EQ(json.at("ranks").at(0).at("operations").at(8).at("label"), "n9");
}

// Its process is gone, and does not wait any longer.
TEST_F(Run, SaysWhatARankWasInWhenItEnded) {
  const pid_t child = ::fork();
  if (child == 0) {
    begin(*rank(0, host_name()), "loss", 1);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const std::string text = to_text(inspect(), 10);
  EXPECT_THAT(text, HasSubstr("it was in all_reduce 'loss' (axis data) when it ended"));
  EXPECT_THAT(text, testing::ContainsRegex("1 +all_reduce 'loss' +until it ended\n"));
}

TEST_F(Run, ShowsWhatEndedTheRanksOperations) {
  const auto first = rank(0, "a"), second = rank(1, "a");
  for (const auto& recorder : {first, second}) recorder->fail(begin(*recorder, "loss", 1));
  save_error(folder_.path(), 1, PeerError("lost rank 0", "look there"));
  const Inspection inspection = inspect();
  EXPECT_THAT(to_text(inspection, 10), HasSubstr("\nrank 1: lost rank 0\n"));
  const auto ranks = nlohmann::json::parse(to_json(inspection)).at("ranks");
  EXPECT_TRUE(ranks.at(0).at("error").is_null());
  EXPECT_EQ(ranks.at(1).at("error"), "lost rank 0");
}

TEST_F(Run, NamesADamagedFileAndShowsTheOthers) {
  const auto recorder = rank(0, "a");
  const std::string damaged = recorder_path(folder_.path(), 1).string();
  std::ofstream(damaged) << "nonsense";
  const Inspection inspection = inspect();
  ASSERT_EQ(inspection.ranks.size(), 1u);
  EXPECT_THAT(to_text(inspection, 10), HasSubstr("'flight-rank-1.bin' is no flight recorder file"));
  EXPECT_THAT(nlohmann::json::parse(to_json(inspection)).at("unreadable"), ElementsAre(damaged));
}

TEST_F(Run, RefusesAFolderWithoutRecorders) {
  EXPECT_THROW((void)inspect(), DataError);
  EXPECT_THROW((void)inspect_run(folder_ / "missing"), DataError);
  std::ofstream(recorder_path(folder_.path(), 0)) << "nonsense";
  EXPECT_THROW((void)inspect(), DataError);
}

}  // namespace
}  // namespace troika
