// When ZeRO talks in a step, as the flight recorder has it: gradients are reduced while the
// backward pass of earlier units is still to come, and values are gathered a unit ahead of their
// use (docs/zero.md, "When things move").
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <troika/base/error.h>
#include <troika/observe/recorder.h>
#include <troika/sync/gradients/data_axis.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ranks/zero_bench.h"

namespace troika::test {
namespace {

using Log = std::vector<std::string>;

// What the units of a step do, and what has begun by then, in one order:
//   "use 2"             unit 2 has its values, and its forward or backward pass begins
//   "ready 2"           its backward pass is done
//   "all_gather 2" ...  an operation on the values or gradients of unit 2 has begun
class StepLog final : public UnitHooks {
 public:
  // Each bucket of the bench is a unit.
  StepLog(ZeroBench& bench, std::filesystem::path recorder)
      : bench_(bench), recorder_(std::move(recorder)), seen_(read_recorder(recorder_).count) {
    const std::vector<std::size_t> order = bench.axis().reducer().order();
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Bucket& bucket = bench.arena().layout().buckets()[order[i]];
      EXPECT_EQ(bucket.last_unit, bucket.first_unit + 1);
      const std::string unit = std::to_string(bucket.first_unit);
      unit_of_["gradient bucket " + std::to_string(i + 1)] = unit;
      unit_of_["values of units " + unit + " to " + unit] = unit;
    }
  }

  void unshard(int unit, Direction direction) override {
    bench_.axis().unshard(unit, direction);
    add("use", unit);
  }
  void reshard(int unit) override {
    bench_.axis().reshard(unit);
    if (bench_.arena().keeps_working_weights()) return;
    for (const auto& parameter : bench_.arena().parameters()) {
      if (parameter->spec().unit != unit) continue;
      EXPECT_THROW(static_cast<void>(parameter->working_weight()), InternalError)
          << parameter->spec().name;
    }
  }
  void prepare_gradients(int unit) override { bench_.axis().prepare_gradients(unit); }
  void gradients_ready(int unit) override {
    add("ready", unit);
    bench_.axis().gradients_ready(unit);
    look();
  }

  // Of a step, the update after it included.
  [[nodiscard]] Log step() {
    static_cast<void>(bench_.step(this));
    look();
    return std::exchange(log_, {});
  }

 private:
  void add(const std::string& what, int unit) {
    look();
    log_.push_back(what + " " + std::to_string(unit));
  }
  void look() {
    const Recording recording = read_recorder(recorder_);
    for (const RecordedOperation& one : recording.operations) {
      const auto unit = unit_of_.find(one.label);
      if (one.sequence <= seen_ || one.axis != "shard" || unit == unit_of_.end()) continue;
      log_.push_back(one.operation + " " + unit->second);
    }
    seen_ = recording.count;
  }

  ZeroBench& bench_;
  std::filesystem::path recorder_;
  std::uint64_t seen_;                          // operations
  std::map<std::string, std::string> unit_of_;  // by the operation's label
  Log log_;
};

// "use 4", "ready 4", "use 3", ... of words and units.
Log log_of(const std::vector<std::pair<std::string, int>>& events) {
  Log log;
  for (const auto& [what, unit] : events) log.push_back(what + " " + std::to_string(unit));
  return log;
}

// A microbatch through five units: where `reduction` is given, a unit's gradients start before
// the backward pass of the unit before it begins.
Log microbatch_with(const std::string& reduction) {
  std::vector<std::pair<std::string, int>> events;
  for (int unit = 0; unit < 5; ++unit) events.emplace_back("use", unit);
  for (int unit = 4; unit >= 0; --unit) {
    events.emplace_back("use", unit);
    events.emplace_back("ready", unit);
    if (!reduction.empty()) events.emplace_back(reduction, unit);
  }
  return log_of(events);
}

Log operator+(Log first, const Log& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Log kGathersOfAll = log_of({{"all_gather", 0},
                                  {"all_gather", 1},
                                  {"all_gather", 2},
                                  {"all_gather", 3},
                                  {"all_gather", 4}});

// Of the second step of small_mlp(): the first one may start with more to gather.
Log second_step(const Rank& rank, int stage, int width, int microbatches) {
  const auto path = recorder_path(rank.folder(), rank.index());
  Sharding sharding =
      sharding_over(rank, stage, width, Recorder::create(path, rank.index(), "here", 4096));
  sharding.buckets = {.first_bytes = 1, .bytes = 1};  // a unit is a bucket
  ZeroBench bench({.model = small_mlp(), .microbatches = microbatches}, sharding, rank.index());
  EXPECT_EQ(bench.arena().layout().buckets().size(), 5U);
  StepLog log(bench, path);
  static_cast<void>(log.step());
  return log.step();
}

RANK_TEST(ZeroOverlap, ReducesEachUnitUnderTheBackwardPassOfThoseBeforeIt, 2) {
  using testing::ElementsAreArray;
  EXPECT_THAT(second_step(rank, 0, 0, 1), ElementsAreArray(microbatch_with("all_reduce")));
  for (const int stage : {1, 2}) {
    EXPECT_THAT(second_step(rank, stage, 0, 1),
                ElementsAreArray(microbatch_with("reduce_scatter") + kGathersOfAll))
        << "stage " << stage;
    // Microbatches are added up before ranks are.
    EXPECT_THAT(
        second_step(rank, stage, 0, 2),
        ElementsAreArray(microbatch_with("") + microbatch_with("reduce_scatter") + kGathersOfAll))
        << "stage " << stage;
  }
}

// The gather of unit 0 has started after the update of the step before; the last three units of the
// forward pass are still there for the backward pass.
Log step_of_stage_3() {
  return log_of({{"all_gather", 1},
                 {"use", 0},
                 {"all_gather", 2},
                 {"use", 1},
                 {"all_gather", 3},
                 {"use", 2},
                 {"all_gather", 4},
                 {"use", 3},
                 {"use", 4},
                 {"use", 4},
                 {"ready", 4},
                 {"reduce_scatter", 4},
                 {"use", 3},
                 {"ready", 3},
                 {"reduce_scatter", 3},
                 {"all_gather", 1},
                 {"use", 2},
                 {"ready", 2},
                 {"reduce_scatter", 2},
                 {"all_gather", 0},
                 {"use", 1},
                 {"ready", 1},
                 {"reduce_scatter", 1},
                 {"use", 0},
                 {"ready", 0},
                 {"reduce_scatter", 0},
                 {"all_gather", 0}});
}

RANK_TEST(ZeroOverlap, GathersEachUnitAheadOfItsUseAndReleasesItAfter, 2) {
  EXPECT_THAT(second_step(rank, 3, 0, 1), testing::ElementsAreArray(step_of_stage_3()));
}

// As on the first of two pipeline stages with 1f1b: two forward passes before the first backward
// pass. Returns what had been gathered when the first pass left the stage, and after them all.
std::pair<std::vector<std::size_t>, std::vector<std::size_t>> gathers_of_stage(DataAxis& axis) {
  std::vector<std::size_t> at_the_end_of_the_first;
  axis.begin_step(2, Seconds(30));
  const auto pass = [&axis](bool forward) {
    for (int i = 0; i < 5; ++i) {
      const int unit = forward ? i : 4 - i;
      axis.unshard(unit, i == 4    ? Direction::kOut
                         : forward ? Direction::kForward
                                   : Direction::kBackward);
      axis.reshard(unit);
    }
  };
  pass(true);
  at_the_end_of_the_first = axis.gatherer().gathers();
  for (const bool forward : {true, false, false}) pass(forward);
  std::vector<std::size_t> all = axis.gatherer().gathers();
  axis.finish();
  axis.after_update();
  return {at_the_end_of_the_first, all};
}

RANK_TEST(ZeroOverlap, GathersAheadOfTheNextPassOfAPipelineStage, 2) {
  using testing::ElementsAre;
  const c10::InferenceMode no_autograd;
  ZeroBench bench({.model = small_mlp(), .microbatches = 2}, sharding_over(rank, 3), rank.index());
  DataAxis& axis = bench.axis();
  axis.after_update();
  // The first step shows in which order passes come; no step gathers more than another.
  const auto [first, all] = gathers_of_stage(axis);
  EXPECT_THAT(first, ElementsAre(0, 1, 2, 3, 4));
  for (int step = 2; step <= 3; ++step) {
    // In between are the passes of an evaluation, in another order.
    axis.unshard(4, Direction::kOut);
    axis.reshard(4);
    axis.unshard(0, Direction::kOut);
    axis.reshard(0);
    axis.after_update();
    const auto [ahead, again] = gathers_of_stage(axis);
    EXPECT_THAT(ahead, ElementsAre(0, 1, 2, 3, 4, 0)) << "step " << step;
    EXPECT_EQ(again, all) << "step " << step;
  }
  EXPECT_EQ(axis.gatherer().most_buffers(), 3U);
}

RANK_TEST(ZeroOverlap, DoesTheSameInsideShardGroups, 4) {
  using testing::ElementsAreArray;
  EXPECT_THAT(second_step(rank, 2, 2, 1),
              ElementsAreArray(microbatch_with("reduce_scatter") + kGathersOfAll));
  EXPECT_THAT(second_step(rank, 3, 2, 1), ElementsAreArray(step_of_stage_3()));
}

}  // namespace
}  // namespace troika::test
