// Tries every way to carry out a small step, in units of time in which each rank does one action or
// none: no order that keeps within the same memory is faster than the schedules that claim it.
#include <gtest/gtest.h>
#include <troika/schedule/generate.h>
#include <troika/schedule/simulate.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr int kMostRanks = 3;
enum Kind { kF, kB, kW };

struct Question {
  int ranks;
  int microbatches;
  bool splits;     // else B includes W
  int memory;      // activations that a rank may hold
  bool from_zero;  // limit the time since the step began, rather than each rank's own span
};

struct State {
  std::uint64_t done = 0;                      // a bit for each action
  std::array<std::int8_t, kMostRanks> span{};  // of ranks that are at work: time since they began
  friend auto operator<=>(const State&, const State&) = default;
};

class Search {
 public:
  Search(const Question& question, int limit) : question_(question), limit_(limit) {}

  // Whether all the work can be done with every rank's time within the limit.
  bool succeeds() {
    State first;
    if (question_.from_zero) first.span.fill(1);  // 1 + the time that has passed
    std::set<State> seen = {first};
    std::vector<State> open = {first};
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      if (all_done(state)) return true;
      for (const State& next : followers(state)) {
        if (seen.insert(next).second) open.push_back(next);
      }
    }
    return false;
  }

 private:
  [[nodiscard]] int kinds() const { return question_.splits ? 3 : 2; }
  [[nodiscard]] std::uint64_t bit(int rank, int microbatch, int kind) const {
    return std::uint64_t{1} << ((rank * question_.microbatches + microbatch) * 3 + kind);
  }
  [[nodiscard]] int left(const State& state, int rank) const {
    int count = 0;
    for (int i = 0; i < question_.microbatches; ++i) {
      for (int kind = 0; kind < kinds(); ++kind) count += (state.done & bit(rank, i, kind)) == 0;
    }
    return count;
  }
  [[nodiscard]] bool all_done(const State& state) const {
    int count = 0;
    for (int rank = 0; rank < question_.ranks; ++rank) count += left(state, rank);
    return count == 0;
  }

  // What `rank` may do now, as bits; 0 is to wait.
  [[nodiscard]] std::vector<std::uint64_t> choices(std::uint64_t done, int rank) const {
    const auto is = [&](int r, int i, int kind) { return (done & bit(r, i, kind)) != 0; };
    const int frees = question_.splits ? kW : kB;
    int alive = 0;
    for (int i = 0; i < question_.microbatches; ++i)
      alive += is(rank, i, kF) && !is(rank, i, frees);
    std::vector<std::uint64_t> result = {0};
    bool in_order = true;  // all weight gradients before this one are done
    for (int i = 0; i < question_.microbatches; ++i) {
      if (!is(rank, i, kF) && alive < question_.memory && (rank == 0 || is(rank - 1, i, kF))) {
        result.push_back(bit(rank, i, kF));
      }
      const bool has_gradient = rank + 1 == question_.ranks || is(rank + 1, i, kB);
      if (is(rank, i, kF) && !is(rank, i, kB) && has_gradient && (question_.splits || in_order)) {
        result.push_back(bit(rank, i, kB));
      }
      if (question_.splits && is(rank, i, kB) && !is(rank, i, kW) && in_order) {
        result.push_back(bit(rank, i, kW));
      }
      in_order = in_order && is(rank, i, frees);
    }
    return result;
  }

  [[nodiscard]] std::vector<State> followers(const State& state) const {
    std::vector<State> states = {state};
    for (int rank = 0; rank < question_.ranks; ++rank) {
      std::vector<State> more;
      for (const std::uint64_t choice : choices(state.done, rank)) {
        for (State next : states) {
          next.done |= choice;
          if (tick(next, rank, choice != 0)) more.push_back(next);
        }
      }
      states = std::move(more);
    }
    return states;
  }

  // A unit of time passes on `rank`; false if it can no longer keep within the limit.
  [[nodiscard]] bool tick(State& state, int rank, bool works) const {
    auto& span = state.span.at(static_cast<std::size_t>(rank));
    if (span > 0 || works) ++span;
    const int rest = left(state, rank);
    const int begun = question_.from_zero ? 1 : 0;
    if (span - begun + rest > limit_) return false;
    if (rest == 0) span = 0;  // how long it took no longer matters
    return true;
  }

  Question question_;
  int limit_;
};

int shortest(const Question& question) {
  int limit = 0;
  while (!Search(question, limit).succeeds()) ++limit;
  return limit;
}

TEST(Optimal, NoOrderIsFasterThan1F1BInItsMemory) {
  for (int p = 1; p <= 3; ++p) {
    for (int m = 1; m <= 5; ++m) {
      const Schedule schedule = make_schedule("1f1b", {p, 1, m});
      const Simulation simulation = simulate(schedule, even_costs(schedule, {1, 1, 0, 0}));
      const int memory = static_cast<int>(simulation.peak_activations);
      EXPECT_EQ(shortest({p, m, false, memory, true}), simulation.makespan) << p << " " << m;
      EXPECT_EQ(shortest({p, m, false, memory, false}), simulation.longest_span) << p << " " << m;
    }
  }
}

TEST(Optimal, GpipeIsNoFasterWithAllTheMemory) {
  for (int p = 1; p <= 3; ++p) {
    const Schedule schedule = make_schedule("gpipe", {p, 1, 3});
    const Simulation simulation = simulate(schedule, even_costs(schedule, {1, 1, 0, 0}));
    EXPECT_EQ(shortest({p, 3, false, 3, true}), simulation.makespan) << p;
  }
}

TEST(Optimal, LessMemoryThan1F1BTakesLonger) {
  for (int p = 2; p <= 3; ++p) {
    EXPECT_GT(shortest({p, 3, false, p - 1, true}), 2 * (3 + p - 1)) << p;
  }
}

// From as many microbatches as ranks on, where its closed form holds.
TEST(Optimal, NoOrderIsFasterThanZbH1InItsMemory) {
  for (int p = 1; p <= 3; ++p) {
    for (int m = p; m <= 5; ++m) {
      const Schedule schedule = make_schedule("zb-h1", {p, 1, m});
      const Simulation simulation = simulate(schedule, even_costs(schedule, {}));
      ASSERT_EQ(simulation.peak_activations, p);
      EXPECT_EQ(shortest({p, m, true, p, true}), simulation.makespan) << p << " " << m;
      EXPECT_EQ(shortest({p, m, true, p, false}), simulation.longest_span) << p << " " << m;
    }
  }
}

TEST(Optimal, ZbH2HasNoBubbleAndLessMemoryHasOne) {
  for (int p = 2; p <= 3; ++p) {
    const int m = 2 * p - 1;
    const Schedule schedule = make_schedule("zb-h2", {p, 1, m});
    const Simulation simulation = simulate(schedule, even_costs(schedule, {}));
    ASSERT_EQ(simulation.peak_activations, 2 * p - 1);
    EXPECT_EQ(simulation.longest_span, 3 * m);
    EXPECT_EQ(shortest({p, m, true, 2 * p - 1, false}), 3 * m);
    EXPECT_GT(shortest({p, m, true, 2 * p - 2, false}), 3 * m);
  }
}

}  // namespace
}  // namespace troika
