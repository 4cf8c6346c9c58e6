#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/schedule/draw.h>
#include <troika/schedule/generate.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace troika {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Drawn {
  Drawn(std::string_view name, const ScheduleShape& shape, const RankCosts& costs = {})
      : schedule(make_schedule(name, shape)),
        simulation(simulate(schedule, even_costs(schedule, costs))) {}

  [[nodiscard]] std::string text(int columns) const { return draw(schedule, simulation, columns); }

  Schedule schedule;
  Simulation simulation;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Draw, ShowsWhoDoesWhatWhen) {
  EXPECT_THAT(Drawn("zb-h1", {2, 1, 2}).text(40),
              StartsWith("rank 0  F0  F1  ....B0  W0  B1  W1\n"
                         "rank 1  ....F0  B0  F1  B1  W0  W1\n"
                         "F forward, B gradient of the input, W of the weights"));
  EXPECT_THAT(Drawn("1f1b", {2, 1, 2}).text(40), StartsWith("rank 0  F0 F1 ......B0    ...B1\n"
                                                            "rank 1  ...F0 B0    F1 B1    ......\n"
                                                            "F forward, B backward\n"));
}

TEST(Draw, TellsVirtualStagesApart) {
  EXPECT_THAT(Drawn("zb-v", {1, 2, 1}).text(60), StartsWith("rank 0  F0    f0    b0    w0    B0"));
  EXPECT_THAT(Drawn("zb-v", {1, 2, 1}).text(60),
              HasSubstr("lower case: virtual stage 1, else virtual stage 0"));
}

TEST(Draw, KeepsToTheWidth) {
  for (const int columns : {40, 61, 100, 237}) {
    for (const int microbatches : {1, 7, 60, 1000}) {
      const std::vector<std::string> lines =
          lines_of(Drawn("1f1b", {12, 1, microbatches}, {0.7, 1.1, 0.9, 0.3}).text(columns));
      ASSERT_EQ(lines.size(), 14U);
      for (std::size_t rank = 0; rank < 12; ++rank) {
        EXPECT_LE(lines[rank].size(), static_cast<std::size_t>(columns));
      }
      // As wide as it may be, where actions are less than a column.
      if (microbatches < 60) continue;
      EXPECT_EQ(lines[11].size(), static_cast<std::size_t>(columns));
    }
  }
}

TEST(Draw, LeavesNumbersOutWhereThereIsNoRoom) {
  const std::string text = Drawn("gpipe", {1, 1, 12}).text(60);
  EXPECT_THAT(text, StartsWith("rank 0  FFFFFFFFFFFFB0B1B2B3B4B5B6B7B8B9B B\n"));
}

TEST(Draw, NothingTakesNoTime) {
  EXPECT_THAT(Drawn("gpipe", {1, 1, 2}, {0, 0, 0, 0}).text(60), StartsWith("rank 0\nF forward"));
}

TEST(Table, HasALineForEachRankAndOneForAll) {
  const Drawn drawn("1f1b", {2, 1, 3});
  const std::vector<std::string> lines = lines_of(to_table(drawn.simulation));
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "rank  first start  last end    span   busy  bubble  peak activations");
  EXPECT_EQ(lines[1], "0           0.000    12.000  12.000  9.000  25.0 %              2.00");
  EXPECT_EQ(lines[2], "1           1.000    10.000   9.000  9.000   0.0 %              1.00");
  EXPECT_EQ(lines[3], "all         0.000    12.000  12.000  9.000  25.0 %              2.00");
  EXPECT_EQ(lines[5],
            "The longest span of a rank is 12.000 ms, of which 25.0 % bubble (bubble_cost).");
}

TEST(Json, IsOneLineWithAllActions) {
  const Drawn drawn("1f1b", {2, 1, 1}, {1, 2, 3, 0.5});
  EXPECT_EQ(to_json(drawn.schedule, drawn.simulation),
            R"({"schedule":"1f1b","stages":2,"virtual_stages":1,"microbatches":1,"makespan":13.0,)"
            R"("longest_span":13.0,"bubble_makespan":0.5384615384615384,)"
            R"("bubble_cost":0.5384615384615384,"peak_activations":1.0,"ranks":[)"
            R"({"rank":0,"first_start":0.0,"last_end":13.0,"span":13.0,"busy":6.0,)"
            R"("peak_activations":1.0,"actions":[)"
            R"({"kind":"F","stage":0,"microbatch":0,"start":0.0,"end":1.0},)"
            R"({"kind":"BW","stage":0,"microbatch":0,"start":8.0,"end":13.0}]},)"
            R"({"rank":1,"first_start":1.5,"last_end":7.5,"span":6.0,"busy":6.0,)"
            R"("peak_activations":1.0,"actions":[)"
            R"({"kind":"F","stage":1,"microbatch":0,"start":1.5,"end":2.5},)"
            R"({"kind":"BW","stage":1,"microbatch":0,"start":2.5,"end":7.5}]}]})");
}

TEST(Trace, IsAProcessForEachRankAndASpanForEachAction) {
  const Drawn drawn("zb-v", {2, 2, 3});
  const std::string trace = to_trace(drawn.schedule, drawn.simulation);
  const std::vector<std::string> lines = lines_of(trace);
  const auto with = [&lines](const std::string& word) {
    return std::count_if(lines.begin(), lines.end(), [&word](const std::string& line) {
      return line.find(word) != std::string::npos;
    });
  };
  EXPECT_EQ(with(R"("ph":"X")"), 2 * 2 * 3 * 3);  // ranks x virtual stages x microbatches x kinds
  EXPECT_EQ(with(R"("name":"process_name")"), 2);
  // Stage 3 is virtual stage 1 of rank 0, and starts once three others have done half a millisecond
  // each.
  EXPECT_EQ(with(R"_({"ph":"X","name":"F0 (stage 3)","pid":0,"tid":0,)_"
                 R"("ts":1500.0,"dur":500.0})"),
            1);
  EXPECT_EQ(with(R"("ts":0.0,"args":{"microbatches":0.5}})"), 1);
}

}  // namespace
}  // namespace troika
