#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/schedule/draw.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/simulate.h>
#include <troika/schedule/validate.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace troika {
namespace {

Simulation simulated(std::string_view name, const ScheduleShape& shape,
                     const RankCosts& costs = {}) {
  const Schedule schedule = make_schedule(name, shape);
  return simulate(schedule, even_costs(schedule, costs));
}

// ---- the closed forms, with F = B = W and C = 0 ----

TEST(ClosedForm, Of1F1BAndGpipe) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      const double bubble = static_cast<double>(p - 1) / (m + p - 1);
      for (const char* name : {"1f1b", "gpipe"}) {
        const Simulation simulation = simulated(name, {p, 1, m});
        ASSERT_EQ(simulation.makespan, 3 * (m + p - 1));
        ASSERT_DOUBLE_EQ(simulation.bubble_cost, bubble) << name << " " << p << " " << m;
        ASSERT_DOUBLE_EQ(simulation.bubble_makespan, bubble) << name << " " << p << " " << m;
      }
    }
  }
}

// One virtual stage after the other: a rank waits between two of them where there are fewer
// microbatches than ranks.
TEST(ClosedForm, OfGpipeWithSeveralVirtualStages) {
  for (int p = 1; p <= 16; ++p) {
    for (const int v : {1, 2, 4}) {
      for (int m = 1; m <= 64; ++m) {
        const int turns = m >= p ? v * m + p - 1 : v * p + m - 1;  // F, B and W of a virtual stage
        const Simulation simulation = simulated("gpipe", {p, v, m});
        const double bubble = static_cast<double>(turns - v * m) / turns;
        ASSERT_DOUBLE_EQ(simulation.makespan, 3.0 * turns / v) << p << " " << v << " " << m;
        ASSERT_DOUBLE_EQ(simulation.bubble_cost, bubble) << p << " " << v << " " << m;
        ASSERT_DOUBLE_EQ(simulation.bubble_makespan, bubble) << p << " " << v << " " << m;
        ASSERT_EQ(simulation.peak_activations, m) << p << " " << v;
      }
    }
  }
}

TEST(ClosedForm, OfInterleaved1F1BWhereGroupsAreFull) {
  for (int p = 1; p <= 16; ++p) {
    for (const int v : {2, 4}) {
      for (int m = p; m <= 64; m += p) {
        const Simulation simulation = simulated("interleaved-1f1b", {p, v, m});
        const double bubble = static_cast<double>(p - 1) / (v * m + p - 1);
        ASSERT_DOUBLE_EQ(simulation.bubble_cost, bubble) << p << " " << m;
        ASSERT_DOUBLE_EQ(simulation.bubble_makespan, bubble) << p << " " << m;
      }
    }
  }
}

TEST(ClosedForm, OfZbH1FromAsManyMicrobatchesAsRanks) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = p; m <= 64; ++m) {
      const Simulation simulation = simulated("zb-h1", {p, 1, m});
      ASSERT_EQ(simulation.makespan, 3 * m + p - 1);
      const double bubble = static_cast<double>(p - 1) / (3 * m + p - 1);
      ASSERT_DOUBLE_EQ(simulation.bubble_cost, bubble) << p << " " << m;
      ASSERT_DOUBLE_EQ(simulation.bubble_makespan, bubble) << p << " " << m;
    }
  }
}

TEST(ClosedForm, ZbH2AndZbVHaveNoBubbleFromTwiceTheRanksLessOne) {
  for (int p = 1; p <= 16; ++p) {
    for (int m = 2 * p - 1; m <= 64; ++m) {
      for (const auto& [name, virtual_stages] :
           std::map<std::string, int>{{"zb-h2", 1}, {"zb-v", 2}}) {
        const Simulation simulation = simulated(name, {p, virtual_stages, m});
        ASSERT_EQ(simulation.bubble_cost, 0) << name << " " << p << " " << m;
        // The last rank begins when the first microbatch is there.
        ASSERT_EQ(simulation.makespan, 3 * m + (p - 1.0) / virtual_stages)
            << name << " " << p << " " << m;
      }
    }
  }
}

// Times that binary fractions do not hold.
TEST(ClosedForm, NoBubbleIsNoneWhateverTheTime) {
  for (const double time : {0.7, 0.1, 1.3, 1e-3, 12345.6}) {
    for (const auto& [name, virtual_stages] :
         std::map<std::string, int>{{"zb-h2", 1}, {"zb-v", 2}}) {
      const Simulation simulation = simulated(name, {8, virtual_stages, 32}, {time, time, time, 0});
      EXPECT_EQ(simulation.bubble_cost, 0) << name << " " << time;
      EXPECT_EQ(to_table(simulation).find("-0.0"), std::string::npos) << name << " " << time;
    }
    EXPECT_NEAR(simulated("zb-h1", {8, 1, 32}, {time, time, time, 0}).bubble_cost, 7.0 / 103,
                1e-14);
  }
}

TEST(ClosedForm, Of1F1BAndGpipeForAnyTimes) {
  for (const RankCosts& costs : {RankCosts{1, 1, 3, 0}, RankCosts{7, 1, 1, 0},
                                 RankCosts{1, 5, 0, 0}, RankCosts{0.5, 0.25, 1.25, 0}}) {
    for (int p = 1; p <= 9; ++p) {
      for (int m = 1; m <= 20; ++m) {
        const double one = costs.forward + costs.backward_input + costs.backward_weight;
        for (const char* name : {"1f1b", "gpipe"}) {
          ASSERT_EQ(simulated(name, {p, 1, m}, costs).makespan, (m + p - 1) * one)
              << name << " " << p << " " << m << " " << costs.forward;
        }
      }
    }
  }
}

TEST(ClosedForm, NoScheduleIsSlowerThan1F1B) {
  constexpr std::pair<const char*, int> kOthers[] = {
      {"gpipe", 1}, {"gpipe", 4}, {"interleaved-1f1b", 2}, {"interleaved-1f1b", 4}, {"zb-h1", 1},
      {"zb-h2", 1}, {"zb-v", 2}};
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; m += 1 + m / 8) {
      const double longest = simulated("1f1b", {p, 1, m}).makespan;
      for (const auto& [name, virtual_stages] : kOthers) {
        ASSERT_LE(simulated(name, {p, virtual_stages, m}).makespan, longest)
            << name << " " << p << " " << m;
      }
    }
  }
}

// ---- memory ----

TEST(Simulate, CountsActivationsAsTheValidatorDoes) {
  for (const std::string_view name : schedule_names()) {
    for (const int p : {1, 2, 3, 5, 8}) {
      for (const int m : {1, 2, 5, 8, 21}) {
        const int virtual_stages =
            name == "gpipe" || name == "interleaved-1f1b" ? 3 : min_virtual_stages(name);
        const Schedule schedule = make_schedule(name, {p, virtual_stages, m});
        const Simulation simulation = simulate(schedule, even_costs(schedule, {1, 2, 0.5, 0.25}));
        const std::vector<int> peaks = peak_stage_activations(schedule);
        double most = 0;
        for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
          const RankTimes& times = simulation.ranks[rank];
          EXPECT_EQ(times.peak_stage_activations, peaks[rank]) << name;
          EXPECT_EQ(times.peak_activations, static_cast<double>(peaks[rank]) / virtual_stages)
              << name;
          most = std::max(most, times.peak_activations);
        }
        EXPECT_EQ(simulation.peak_activations, most);
      }
    }
  }
}

TEST(Simulate, ZbVNeedsTheMemoryOf1F1B) {
  EXPECT_EQ(simulated("zb-v", {8, 2, 32}).peak_activations, 8);
  EXPECT_EQ(simulated("1f1b", {8, 1, 32}).peak_activations, 8);
  EXPECT_EQ(simulated("zb-h1", {8, 1, 32}).peak_activations, 8);
  EXPECT_EQ(simulated("zb-h2", {8, 1, 32}).peak_activations, 15);
}

// ---- times ----

struct Times {
  double start;
  double end;
};
using Table = std::map<std::tuple<ActionKind, int, int>, Times>;

// Every action lasts as long as it costs, comes after what it uses, and starts the moment that both
// its rank and what it uses are there.
void expect_as_early_as_possible(const Schedule& schedule, const ScheduleCosts& costs,
                                 const Simulation& simulation) {
  Table table;
  for (const RankTimes& rank : simulation.ranks) {
    for (const TimedAction& timed : rank.actions) {
      const auto& [kind, stage, microbatch] = timed.action;
      table[{kind, stage, microbatch}] = {timed.start, timed.end};
      if (kind == ActionKind::kBackward) {
        table[{ActionKind::kBackwardInput, stage, microbatch}] = {timed.start, timed.end};
      }
    }
  }
  for (const RankTimes& rank : simulation.ranks) {
    double free = 0;
    for (const TimedAction& timed : rank.actions) {
      const auto& [kind, stage, microbatch] = timed.action;
      const bool forward = kind == ActionKind::kForward;
      const int source = forward ? stage - 1 : stage + 1;
      double there = 0;
      if (kind != ActionKind::kBackwardWeight && source >= 0 && source < schedule.stages()) {
        const auto made = forward ? ActionKind::kForward : ActionKind::kBackwardInput;
        there = table.at({made, source, microbatch}).end +
                (schedule.crosses(stage, source) ? costs.transfer : 0);
      }
      ASSERT_EQ(timed.start, std::max(free, there)) << describe(timed.action);
      ASSERT_EQ(timed.end, timed.start + costs.of(timed.action)) << describe(timed.action);
      free = timed.end;
    }
    ASSERT_EQ(free, rank.last_end);
    ASSERT_EQ(rank.actions.front().start, rank.first_start);
  }
}

TEST(Simulate, StartsEveryActionAsEarlyAsPossible) {
  for (const std::string_view name : schedule_names()) {
    for (const int p : {1, 2, 3, 6}) {
      for (const int m : {1, 2, 4, 11}) {
        const int virtual_stages = name == "interleaved-1f1b" ? 2 : min_virtual_stages(name);
        const Schedule schedule = make_schedule(name, {p, virtual_stages, m});
        ScheduleCosts costs = even_costs(schedule, {2, 4, 1, 0.5});
        expect_as_early_as_possible(schedule, costs, simulate(schedule, costs));
        for (std::size_t stage = 0; stage < costs.forward.size(); ++stage) {
          costs.forward[stage] += 0.25 * static_cast<double>(stage % 3);  // an uneven cut
          costs.backward_weight[stage] += 0.125 * static_cast<double>(stage % 2);
        }
        expect_as_early_as_possible(schedule, costs, simulate(schedule, costs));
      }
    }
  }
}

TEST(Simulate, TransfersDelayAndOccupyNoRank) {
  const Simulation simulation = simulated("1f1b", {2, 1, 1}, {1, 2, 3, 10});
  // F, 10, F, B with W, 10, B with W.
  EXPECT_EQ(simulation.makespan, 1 + 10 + 1 + 5 + 10 + 5);
  EXPECT_EQ(simulation.ranks[0].busy, 6);
  EXPECT_EQ(simulation.ranks[1].first_start, 11);
  EXPECT_EQ(simulation.ranks[1].span(), 6);
  EXPECT_EQ(simulation.longest_span, 32);
  EXPECT_DOUBLE_EQ(simulation.bubble_cost, (32 - 6) / 32.0);
  // Inside a rank there is none.
  EXPECT_EQ(simulated("zb-v", {1, 2, 1}, {1, 2, 3, 10}).makespan, 6);
}

TEST(Simulate, GradientsGoOnBeforeTheWeightsWhereTheyAreApart) {
  const Simulation simulation = simulated("zb-h1", {2, 1, 1}, {1, 2, 3, 0});
  EXPECT_EQ(simulation.ranks[0].actions.at(1).start, 1 + 1 + 2);
  EXPECT_EQ(simulation.makespan, 1 + 1 + 2 + 2 + 3);
}

TEST(Simulate, UnevenWorkCountsWithItsMean) {
  const Schedule schedule = make_schedule("gpipe", {2, 1, 1});
  const Simulation simulation = simulate(schedule, {{1, 3}, {1, 3}, {1, 3}, 0});
  EXPECT_EQ(simulation.makespan, 12);
  EXPECT_DOUBLE_EQ(simulation.bubble_makespan, (12 - 6) / 12.0);
}

TEST(Simulate, RefusesCostsThatMakeNoSense) {
  const Schedule schedule = make_schedule("1f1b", {2, 1, 2});
  EXPECT_THROW((void)simulate(schedule, {{1}, {1, 1}, {1, 1}, 0}), UsageError);
  EXPECT_THROW((void)simulate(schedule, {{1, 1}, {1, -1}, {1, 1}, 0}), UsageError);
  EXPECT_THROW((void)simulate(schedule, {{1, 1}, {1, 1}, {1, 1}, -1}), UsageError);
  const double endless = std::numeric_limits<double>::infinity();
  EXPECT_THROW((void)simulate(schedule, {{1, 1}, {1, 1}, {1, endless}, 0}), UsageError);
}

TEST(Simulate, SaysThatProgramsWaitForever) {
  Schedule schedule = make_schedule("1f1b", {2, 1, 2});
  std::rotate(schedule.programs[0].begin(), schedule.programs[0].begin() + 3,
              schedule.programs[0].end());
  std::reverse(schedule.programs[0].begin(), schedule.programs[0].end());
  EXPECT_THROW((void)simulate(schedule, even_costs(schedule, {})), InternalError);
}

}  // namespace
}  // namespace troika
