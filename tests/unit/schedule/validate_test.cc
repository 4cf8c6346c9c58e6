#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/validate.h>

#include <algorithm>
#include <random>
#include <string>

#include "execution.h"
#include "programs.h"

namespace troika {
namespace {

using ::testing::HasSubstr;
using testing_support::Verdict;
using testing_support::works;
using testing_support::works_in_every_order;

std::vector<int> virtual_stages_of(std::string_view name) {
  if (name == "zb-v") return {2};
  if (name == "gpipe" || name == "interleaved-1f1b") return {1, 2, 3, 4};
  return {1};
}

class EverySchedule : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         ::testing::ValuesIn(schedule_names().begin(), schedule_names().end()),
                         [](const auto& param) {
                           std::string name(param.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- whole range ----

TEST_P(EverySchedule, IsProvenForEveryShape) {
  for (const int virtual_stages : virtual_stages_of(GetParam())) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (int microbatches = 1; microbatches <= 64; ++microbatches) {
        const auto fault =
            find_fault(make_schedule(GetParam(), {ranks, virtual_stages, microbatches}));
        ASSERT_FALSE(fault) << microbatches << " microbatches, " << virtual_stages
                            << " virtual stages: " << fault->message;
      }
    }
  }
}

// The most activations of a virtual stage that rank r may hold, from the papers.
int most_alive(std::string_view name, const ScheduleShape& shape, int rank) {
  const int ahead = shape.ranks - 1 - rank;
  if (name == "gpipe") return shape.virtual_stages * shape.microbatches;
  if (name == "1f1b" || shape.virtual_stages == 1) {
    if (name == "zb-h1") return shape.ranks;
    if (name == "zb-h2") return 2 * shape.ranks - 1;
    if (name == "eager-1f1b") return 2 * ahead + 1;
    return ahead + 1;
  }
  if (name == "zb-v") return 2 * shape.ranks;
  return 2 * ahead + (shape.virtual_stages - 1) * shape.ranks + 1;
}

TEST_P(EverySchedule, KeepsToItsMemory) {
  for (const int virtual_stages : virtual_stages_of(GetParam())) {
    for (int ranks = 1; ranks <= 16; ranks += 3) {
      for (int microbatches = 1; microbatches <= 64; microbatches += 1 + microbatches / 8) {
        const ScheduleShape shape{ranks, virtual_stages, microbatches};
        const Schedule schedule = make_schedule(GetParam(), shape);
        const std::vector<int> peaks = peak_stage_activations(schedule);
        for (int rank = 0; rank < ranks; ++rank) {
          const int peak = peaks[static_cast<std::size_t>(rank)];
          const int most =
              std::min(most_alive(GetParam(), shape, rank), virtual_stages * microbatches);
          ASSERT_LE(peak, most) << ranks << " ranks, " << microbatches << ", rank " << rank;
          const bool fills = microbatches >= 3 * ranks;
          ASSERT_TRUE(peak == most || !fills) << ranks << " ranks, rank " << rank;
        }
        // The bound is told apart to a single virtual stage.
        const int peak = *std::max_element(peaks.begin(), peaks.end());
        const auto bound = [&](int alive) {
          return ScheduleBounds{static_cast<double>(alive) / virtual_stages};
        };
        ASSERT_FALSE(find_fault(schedule, bound(peak)));
        const auto fault = find_fault(schedule, bound(peak - 1));
        ASSERT_TRUE(fault);
        ASSERT_EQ(peaks[static_cast<std::size_t>(fault->rank)], peak);
      }
    }
  }
}

TEST_P(EverySchedule, DoesTheWorkOfAPlainLoop) {
  for (const int virtual_stages : virtual_stages_of(GetParam())) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      for (const int microbatches : {1, 2, 3, 5, 8, 13}) {
        ASSERT_TRUE(works(make_schedule(GetParam(), {ranks, virtual_stages, microbatches})))
            << ranks << " ranks, " << virtual_stages << " virtual stages, " << microbatches
            << " microbatches";
      }
    }
  }
}

TEST_P(EverySchedule, WorksWhicheverRankGoesFirst) {
  for (const int virtual_stages : virtual_stages_of(GetParam())) {
    if (virtual_stages > 2) continue;
    for (int ranks = 1; ranks <= 3; ++ranks) {
      for (int microbatches = 1; microbatches <= 3; ++microbatches) {
        if (ranks * virtual_stages * microbatches > 9) continue;  // the number of orders explodes
        EXPECT_TRUE(
            works_in_every_order(make_schedule(GetParam(), {ranks, virtual_stages, microbatches}))
                .always);
      }
    }
  }
}

// ---- corrupted programs ----

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t bound) {
  return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

Program& some_program(Schedule& schedule, Random& random) {
  for (;;) {
    Program& program = schedule.programs[below(random, schedule.programs.size())];
    if (program.size() > 1) return program;
  }
}

void swap_actions(Schedule& schedule, Random& random) {
  Program& program = some_program(schedule, random);
  const std::size_t at = below(random, program.size());
  // Half of them neighbours, which are the hardest to tell.
  const std::size_t steps = below(random, 2) == 0 ? 1 : 1 + below(random, program.size() - 1);
  std::swap(program[at], program[(at + steps) % program.size()]);
}

void drop_action(Schedule& schedule, Random& random) {
  Program& program = some_program(schedule, random);
  program.erase(program.begin() + static_cast<std::ptrdiff_t>(below(random, program.size())));
}

void double_action(Schedule& schedule, Random& random) {
  Program& program = some_program(schedule, random);
  const ScheduleAction action = program[below(random, program.size())];
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(random, program.size() + 1)),
                 action);
}

// Another kind, stage or microbatch.
void change_action(Schedule& schedule, Random& random) {
  Program& program = some_program(schedule, random);
  ScheduleAction& action = program[below(random, program.size())];
  const ScheduleAction before = action;
  while (action == before) {
    action.kind = static_cast<ActionKind>(below(random, 8));
    action.stage += static_cast<int>(below(random, 3)) - 1;
    action.microbatch += static_cast<int>(below(random, 3)) - 1;
  }
}

void hand_to_another_rank(Schedule& schedule, Random& random) {
  Program& from = some_program(schedule, random);
  const std::size_t at = below(random, from.size());
  const ScheduleAction action = from[at];
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
  Program& to = some_program(schedule, random);
  to.insert(to.begin() + static_cast<std::ptrdiff_t>(below(random, to.size() + 1)), action);
}

Schedule small_schedule(std::string_view name, Random& random) {
  const std::vector<int> virtual_stages = virtual_stages_of(name);
  return make_schedule(
      name, {2 + static_cast<int>(below(random, 3)),
             virtual_stages[below(random, std::min<std::size_t>(2, virtual_stages.size()))],
             1 + static_cast<int>(below(random, 6))});
}

TEST_P(EverySchedule, IsRejectedOnceActionsAreSwappedUnlessItStillWorks) {
  Random random(1);
  int rejected = 0;
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    Schedule schedule = small_schedule(GetParam(), random);
    swap_actions(schedule, random);
    const auto fault = find_fault(schedule);
    ASSERT_EQ(!fault, works(schedule)) << (fault ? fault->message : "accepted");
    ++(fault ? rejected : accepted);
  }
  // Both happen: the test tells something.
  EXPECT_GT(rejected, 200);
  EXPECT_GT(accepted, 20);
}

TEST_P(EverySchedule, IsRejectedOnceAnActionIsDroppedOrDoubled) {
  Random random(2);
  for (int i = 0; i < 500; ++i) {
    Schedule dropped = small_schedule(GetParam(), random);
    drop_action(dropped, random);
    ASSERT_TRUE(find_fault(dropped));
    ASSERT_FALSE(works(dropped));
    Schedule doubled = small_schedule(GetParam(), random);
    double_action(doubled, random);
    ASSERT_TRUE(find_fault(doubled));
  }
}

TEST_P(EverySchedule, IsRejectedOnceAnActionIsChangedOrMovedUnlessItStillWorks) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    Schedule changed = small_schedule(GetParam(), random);
    change_action(changed, random);
    // A second pass changes nothing but the time, so it works; it is rejected all the same.
    const auto fault = find_fault(changed);
    ASSERT_TRUE(fault || works(changed));
    Schedule moved = small_schedule(GetParam(), random);
    hand_to_another_rank(moved, random);
    const auto other = find_fault(moved);
    ASSERT_EQ(!other, works(moved)) << (other ? other->message : "accepted");
  }
}

TEST_P(EverySchedule, OfAnyShapeIsRejectedOnceItIsSpoiltUnlessItStillWorks) {
  Random random(5);
  const std::vector<int> virtual_stages = virtual_stages_of(GetParam());
  for (int i = 0; i < 50; ++i) {
    const ScheduleShape shape{2 + static_cast<int>(below(random, 15)),
                              virtual_stages[below(random, virtual_stages.size())],
                              1 + static_cast<int>(below(random, 64))};
    const Schedule schedule = make_schedule(GetParam(), shape);
    for (const auto& spoil : {swap_actions, hand_to_another_rank}) {
      Schedule other = schedule;
      spoil(other, random);
      const auto fault = find_fault(other);
      ASSERT_EQ(!fault, works(other)) << (fault ? fault->message : "accepted");
    }
    Schedule dropped = schedule, doubled = schedule, changed = schedule;
    drop_action(dropped, random);
    ASSERT_TRUE(find_fault(dropped));
    ASSERT_FALSE(works(dropped));
    double_action(doubled, random);
    ASSERT_TRUE(find_fault(doubled));
    change_action(changed, random);
    ASSERT_TRUE(find_fault(changed) || works(changed));
  }
}

// ---- programs in a random order ----

// Forward before the gradients of each microbatch, weight gradients in ascending order; whether
// ranks wait for each other is left to chance.
Schedule random_schedule(Random& random) {
  Schedule schedule;
  schedule.name = "random";
  schedule.ranks = 2 + static_cast<int>(below(random, 2));
  schedule.microbatches = 1 + static_cast<int>(below(random, 3));
  const bool splits = below(random, 2) == 0;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    schedule.rank_of_stage.push_back(rank);
    Program program;
    std::vector<int> forwards;
    std::vector<int> inputs;
    for (int i = 0; i < schedule.microbatches; ++i) forwards.push_back(i);
    inputs = forwards;
    if (below(random, 2) == 0) std::shuffle(forwards.begin(), forwards.end(), random);
    if (splits && below(random, 2) == 0) std::shuffle(inputs.begin(), inputs.end(), random);
    std::size_t f = 0;
    std::size_t b = 0;
    int w = 0;
    const auto done = [](const std::vector<int>& order, std::size_t count, int i) {
      const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
      return std::find(order.begin(), end, i) != end;
    };
    while (w < schedule.microbatches) {
      const std::size_t choice = below(random, 3);
      if (choice == 0 && f < forwards.size()) {
        program.push_back({ActionKind::kForward, rank, forwards[f++]});
      } else if (choice == 1 && b < inputs.size() && done(forwards, f, inputs[b])) {
        const auto kind = splits ? ActionKind::kBackwardInput : ActionKind::kBackward;
        program.push_back({kind, rank, inputs[b++]});
        if (!splits) ++w;
      } else if (choice == 2 && splits && done(inputs, b, w)) {
        program.push_back({ActionKind::kBackwardWeight, rank, w++});
      }
    }
    schedule.programs.push_back(std::move(program));
  }
  add_transfers(schedule);
  return schedule;
}

TEST(Validate, FindsDeadlocksAsTryingEveryOrderDoes) {
  Random random(4);
  int deadlocks = 0;
  int sound = 0;
  for (int i = 0; i < 300; ++i) {
    Schedule schedule = random_schedule(random);
    if (below(random, 3) == 0) swap_actions(schedule, random);
    const auto fault = find_fault(schedule);
    const Verdict verdict = works_in_every_order(schedule);
    ASSERT_EQ(!fault, verdict.always) << (fault ? fault->message : "accepted");
    // Luck plays no part: what works in one order works in all.
    ASSERT_EQ(verdict.always, verdict.sometimes);
    if (fault && fault->message.find("deadlock") != std::string::npos) ++deadlocks;
    if (!fault) ++sound;
  }
  EXPECT_GT(deadlocks, 20);
  EXPECT_GT(sound, 20);
}

// ---- what faults say ----

ScheduleFault fault_of(const Schedule& schedule, const ScheduleBounds& bounds = {}) {
  const auto fault = find_fault(schedule, bounds);
  if (!fault) throw InternalError("no fault in " + schedule.name);
  return *fault;
}

Schedule two_ranks() {
  return make_schedule("zb-h1", {2, 1, 2});
}

// Of rank 0: F0 send, [receive gradient 0] F1 send, [receive gradient 1] B0 W0 B1 W1.
constexpr ScheduleAction kSecondForward{ActionKind::kForward, 0, 1};

std::size_t position_of(const Program& program, const ScheduleAction& action) {
  return static_cast<std::size_t>(
      std::distance(program.begin(), std::find(program.begin(), program.end(), action)));
}

TEST(Validate, NamesRankPositionAndAction) {
  Schedule schedule = two_ranks();
  Program& program = schedule.programs[0];
  const std::size_t at = position_of(program, kSecondForward);
  program[at].stage = 1;
  const ScheduleFault fault = fault_of(schedule);
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.position, static_cast<int>(at));
  EXPECT_EQ(fault.message,
            "zb-h1: rank 0, action " + std::to_string(at) + ": F1 (stage 1) is rank 1's to do");
  try {
    validate(schedule);
    ADD_FAILURE() << "not refused";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.what(), "the pipeline schedule " + fault.message);
    EXPECT_FALSE(error.hint().empty());
  }
  EXPECT_NO_THROW(validate(two_ranks()));
}

TEST(Validate, NamesWhatIsMissing) {
  Schedule schedule = two_ranks();
  schedule.programs[1].pop_back();
  const ScheduleFault fault = fault_of(schedule);
  EXPECT_EQ(fault.rank, 1);
  EXPECT_EQ(fault.position, static_cast<int>(schedule.programs[1].size()));
  EXPECT_THAT(fault.message, HasSubstr("W1 (stage 1) is missing"));
}

TEST(Validate, WantsEachOfTheTwoGradientsOnce) {
  Schedule schedule = two_ranks();
  Program& program = schedule.programs[0];
  program[position_of(program, {ActionKind::kBackwardInput, 0, 1})].kind = ActionKind::kBackward;
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("W1 (stage 0) is there twice"));
  // One microbatch may have both in one, another apart.
  program.pop_back();
  EXPECT_FALSE(find_fault(schedule));
}

TEST(Validate, WantsWeightGradientsInAscendingOrder) {
  Schedule schedule = two_ranks();
  Program& program = schedule.programs[0];
  std::swap(program[position_of(program, {ActionKind::kBackwardWeight, 0, 0})], program.back());
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("before the gradient of its input"));
  Schedule gpipe = make_schedule("gpipe", {1, 1, 2});
  std::swap(gpipe.programs[0][2], gpipe.programs[0][3]);
  EXPECT_THAT(fault_of(gpipe).message, HasSubstr("B1 (stage 0) comes where microbatch 0 is due"));
}

TEST(Validate, WantsReceivesInTheOrderOfTheSends) {
  Schedule schedule = make_schedule("gpipe", {2, 1, 2});
  Program& program = schedule.programs[1];
  const ScheduleAction first{ActionKind::kReceiveActivation, 1, 0};
  const ScheduleAction second{ActionKind::kReceiveActivation, 1, 1};
  std::swap(program[position_of(program, first)], program[position_of(program, second)]);
  EXPECT_THAT(fault_of(schedule).message,
              HasSubstr("is posted where rank 0 does send activation 0 (for stage 1)"));
}

TEST(Validate, WantsWhatIsUsedToBeThere) {
  Schedule schedule = two_ranks();
  Program& program = schedule.programs[1];
  std::swap(program[position_of(program, {ActionKind::kReceiveActivation, 1, 0})],
            program[position_of(program, {ActionKind::kForward, 1, 0})]);
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("comes before what it uses is received"));
  Schedule v = make_schedule("zb-v", {1, 2, 1});
  std::swap(v.programs[0][0], v.programs[0][1]);
  EXPECT_THAT(fault_of(v).message, HasSubstr("F0 (stage 1) comes before stage 0 of its rank"));
}

TEST(Validate, NamesBothEndsOfADeadlock) {
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, which rank 1 wants
  // first.
  constexpr auto kF = ActionKind::kForward;
  constexpr auto kB = ActionKind::kBackward;
  const Schedule schedule =
      testing_support::two_ranks({{{kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}},
                                  {{kF, 1, 0}, {kF, 1, 1}, {kB, 1, 0}, {kB, 1, 1}}});
  EXPECT_THAT(fault_of(schedule).message,
              HasSubstr("B0 (stage 0) waits for rank 1, which waits in F1 (stage 1): a deadlock"));
}

// Rank 0 has all its forwards first, and takes no gradient before; rank 1 has each microbatch's
// gradient at once.
Schedule one_way_first(int microbatches) {
  Program first, second;
  for (int i = 0; i < microbatches; ++i) {
    first.push_back({ActionKind::kForward, 0, i});
    second.push_back({ActionKind::kForward, 1, i});
    second.push_back({ActionKind::kBackward, 1, i});
  }
  for (int i = 0; i < microbatches; ++i) first.push_back({ActionKind::kBackward, 0, i});
  return testing_support::two_ranks({first, second}, microbatches);
}

TEST(Validate, CountsTheSendsThatMayBeUnderWay) {
  const int most = one_way_first(1).most_sends();
  EXPECT_FALSE(find_fault(one_way_first(most)));
  const Schedule long_one = one_way_first(4 * most);
  EXPECT_THAT(fault_of(long_one).message, HasSubstr(": a deadlock"));
  EXPECT_FALSE(works(long_one));
}

TEST(Validate, WantsAShapeThatFits) {
  Schedule schedule = two_ranks();
  schedule.rank_of_stage = {0, 0};
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("2 stages, not 1"));
  schedule.rank_of_stage = {0, 2};
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("a stage on rank 2"));
  schedule = two_ranks();
  schedule.programs.pop_back();
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("1 programs"));
  schedule.microbatches = 0;
  EXPECT_THAT(fault_of(schedule).message, HasSubstr("at least 1"));
}

TEST(Validate, BoundsMemoryInMicrobatches) {
  const Schedule schedule = make_schedule("zb-v", {4, 2, 8});
  EXPECT_FALSE(find_fault(schedule, {4.0}));
  EXPECT_THAT(fault_of(schedule, {3.5}).message,
              HasSubstr("makes 8 activations of a virtual stage, of 2 a microbatch"));
}

}  // namespace
}  // namespace troika
