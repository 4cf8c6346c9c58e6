// What a worker says that joins a job: why it has ended is not always that it left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/observe/log.h>
#include <troika/train/guest_log.h>

#include <string>
#include <vector>

namespace troika {
namespace {

using testing::ElementsAre;

class GuestLines : public testing::Test {
 public:
  GuestLines() {
    LogOptions options;
    options.writer = [this](LogLevel, std::string_view line) { lines_.emplace_back(line); };
    configure_log(options);
  }
  ~GuestLines() override { configure_log({}); }
  GuestLines(const GuestLines&) = delete;
  GuestLines& operator=(const GuestLines&) = delete;

 protected:
  std::vector<std::string> lines_;
};

TEST_F(GuestLines, SayThatItHasLeft) {
  bool leaves = false;
  GuestLog guest("a:1", [&] { return leaves; });
  guest.joined();
  guest.passed(7);
  guest.passed(8);  // within a second of the line before
  leaves = true;
  guest.ended();
  EXPECT_THAT(lines_, ElementsAre("joined the job of a:1", "at step 7; passes trained here: 1",
                                  "left the job behind step 8; passes trained here: 2"));
}

TEST_F(GuestLines, SayThatTheJobIsFinished) {
  GuestLog guest("a:1", [] { return false; });
  guest.passed(399);
  guest.ended();
  EXPECT_THAT(lines_,
              ElementsAre("at step 399; passes trained here: 1",
                          "the job is finished; passes trained here: 1, the last of step 399"));
  lines_.clear();
  GuestLog late("a:1", [] { return false; });
  late.ended();  // all was trained before it got samples
  EXPECT_THAT(lines_, ElementsAre("the job is finished; passes trained here: 0"));
}

}  // namespace
}  // namespace troika
