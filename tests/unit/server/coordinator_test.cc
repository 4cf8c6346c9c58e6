#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/server/coordinator.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <vector>

namespace troika {
namespace {

CoordinatorOptions options_of(std::int64_t workers, std::int64_t steps,
                              std::optional<std::int64_t> staleness) {
  CoordinatorOptions options;
  options.workers = workers;
  options.last_step = steps;
  options.global_batch_size = 12;
  options.staleness = staleness;
  options.lease = Seconds(10);
  return options;
}

// A job in virtual time: each worker takes a drawn time over its samples, and may die.
class Schedule {
 public:
  Schedule(CoordinatorOptions options, std::uint64_t seed, double death)
      : options_(options), coordinator_(options), random_(seed), death_(death) {
    for (std::int64_t i = 0; i < options.workers; ++i) join(i);
  }

  // Runs to the end; false where it does not get there.
  bool run() {
    for (int events = 0; events < 100'000; ++events) {
      finish_round();
      start_all();
      while (coordinator_.take_figures()) ++steps_;
      if (coordinator_.is_over()) return true;
      if (events_.empty()) {
        if (silent_.empty()) return false;
        advance(now_ + options_.lease.count() + 1);
        expire();
        continue;
      }
      const Event event = events_.top();
      events_.pop();
      advance(event.time);
      expire();
      happen(event);
    }
    return false;
  }

  [[nodiscard]] const std::map<std::int64_t, int>& trained() const { return trained_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  [[nodiscard]] bool broke_the_bound() const { return broke_the_bound_; }
  [[nodiscard]] std::int64_t lost() const { return lost_; }

 private:
  struct Event {
    double time;
    int worker;
    Assignment assignment;
    bool dies;
    bool operator>(const Event& other) const { return time > other.time; }
  };

  void join(std::int64_t place) {
    const int worker = coordinator_.join(place, now_);
    // One that starts late has the clock of the slowest.
    std::int64_t clock = 0;
    if (!clocks_.empty())
      clock = std::ranges::min_element(clocks_, {}, [](auto& each) { return each.second; })->second;
    clocks_[worker] = clock;
    idle_.insert(worker);
  }

  void start_all() {
    const std::set<int> idle = idle_;
    for (const int worker : idle) {
      const auto assignment = coordinator_.try_start(worker);
      if (!assignment) continue;
      idle_.erase(worker);
      check_bound(worker);
      std::lognormal_distribution<double> time(0, 1);
      std::uniform_real_distribution<double> chance(0, 1);
      // The last one lives.
      const bool dies = chance(random_) < death_ && clocks_.size() > 1;
      if (dies) clocks_.erase(worker);
      events_.push({now_ + time(random_), worker, *assignment, dies});
    }
  }

  // Ho et al. 2013: no worker starts step c before all updates of steps < c - k are in.
  void check_bound(int worker) {
    if (!options_.staleness) return;
    for (const auto& [other, clock] : clocks_) {
      if (clock < clocks_.at(worker) - *options_.staleness) broke_the_bound_ = true;
    }
  }

  void happen(const Event& event) {
    if (event.dies) {
      silent_.insert(event.worker);
      return;
    }
    coordinator_.finish(event.worker, event.assignment.turn, {.loss = 1, .weight = 1, .valid = 1});
    coordinator_.finish(event.worker, event.assignment.turn, {.loss = 1, .weight = 1, .valid = 1});
    ++clocks_[event.worker];
    pushed_.push_back(event.assignment.samples);
    if (options_.staleness != 0) {
      for (const IndexRange& samples : std::exchange(pushed_, {})) train(samples);
    }
    (options_.staleness == 0 ? waiting_ : idle_).insert(event.worker);
  }

  void finish_round() {
    if (options_.staleness != 0 || !coordinator_.complete_round()) return;
    coordinator_.end_round(1, "");
    idle_.merge(waiting_);
    for (const IndexRange& samples : std::exchange(pushed_, {})) train(samples);
  }

  void train(const IndexRange& samples) {
    for (std::int64_t i = samples.first; i < samples.end(); ++i) ++trained_[i];
  }

  // Those that live tell so all the time.
  void advance(double to) {
    now_ = std::max(now_, to);
    for (const int worker : coordinator_.workers()) {
      if (!silent_.contains(worker)) coordinator_.record_heartbeat(worker, now_);
    }
  }

  void expire() {
    for (const Coordinator::Lost& lost : coordinator_.expire(now_)) {
      coordinator_.resolve_lost(lost, false);
      silent_.erase(lost.worker);
      ++lost_;
    }
  }

  CoordinatorOptions options_;
  Coordinator coordinator_;
  std::mt19937_64 random_;
  double death_;
  double now_ = 0;
  std::map<int, std::int64_t> clocks_;  // of those that live
  std::set<int> idle_, waiting_, silent_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<IndexRange> pushed_;
  std::map<std::int64_t, int> trained_;
  std::int64_t steps_ = 0, lost_ = 0;
  bool broke_the_bound_ = false;
};

void expect_each_once(const Schedule& schedule, std::int64_t samples) {
  ASSERT_EQ(std::ssize(schedule.trained()), samples);
  for (const auto& [sample, times] : schedule.trained()) ASSERT_EQ(times, 1) << sample;
}

TEST(Coordinator, KeepsTheBoundInTenThousandSchedules) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    Schedule schedule(options_of(2 + static_cast<std::int64_t>(seed % 4), 4,
                                 1 + static_cast<std::int64_t>(seed % 3)),
                      seed, seed % 2 == 0 ? 0 : 0.05);
    ASSERT_TRUE(schedule.run()) << seed;
    ASSERT_FALSE(schedule.broke_the_bound()) << seed;
    ASSERT_NO_FATAL_FAILURE(expect_each_once(schedule, 4 * 12)) << seed;
    ASSERT_EQ(schedule.steps(), 4) << seed;
  }
}

// Neither further ahead than the bound, nor held back before it is reached.
TEST(Coordinator, LetsAWorkerBeAheadByTheBoundAndNoFurther) {
  for (const std::int64_t bound : {1, 2, 5}) {
    Coordinator coordinator(options_of(2, 100, bound));
    const int fast = coordinator.join(0, 0), slow = coordinator.join(1, 0);
    EXPECT_TRUE(coordinator.try_start(slow));
    std::int64_t turns = 0;
    const auto run_ahead = [&] {
      while (coordinator.try_start(fast)) coordinator.finish(fast, ++turns, {.weight = 1});
    };
    run_ahead();
    EXPECT_EQ(turns, bound + 1) << "none of the other's is in";
    coordinator.finish(slow, 1, {.weight = 1});
    run_ahead();
    EXPECT_EQ(turns, bound + 2) << "one of the other's is in";
  }
}

// Whatever the job has started with: a push weighs 1 over it (ServerShard::push).
TEST(Coordinator, CountsTheWorkersThatAreThere) {
  for (const std::optional<std::int64_t> staleness :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(9)}) {
    Coordinator coordinator(options_of(1, 20, staleness));
    const int one = coordinator.join(0, 0);
    EXPECT_EQ(coordinator.try_start(one)->workers, 1);
    const int two = coordinator.join(1, 5), three = coordinator.join(2, 5);
    EXPECT_EQ(coordinator.try_start(one)->workers, 1) << "asked again: the same samples";
    EXPECT_EQ(coordinator.try_start(two)->workers, 3);
    EXPECT_EQ(coordinator.try_start(three)->workers, 3);
    coordinator.finish(one, 1, {.weight = 1});
    EXPECT_EQ(coordinator.try_start(one)->workers, 3);
    coordinator.finish(one, 2, {.weight = 1});
    coordinator.remove_worker(one);
    coordinator.finish(two, 1, {.weight = 1});
    EXPECT_EQ(coordinator.try_start(two)->workers, 2) << "one has left";
    coordinator.record_heartbeat(two, 14);
    for (const Coordinator::Lost& lost : coordinator.expire(16))
      coordinator.resolve_lost(lost, false);
    coordinator.finish(two, 2, {.weight = 1});
    EXPECT_EQ(coordinator.try_start(two)->workers, 1) << "one's lease is over";
  }
}

TEST(Coordinator, DealsOutAgainWhatALostWorkerHad) {
  std::int64_t lost = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Schedule schedule(options_of(4, 6, std::nullopt), seed, 0.2);
    ASSERT_TRUE(schedule.run()) << seed;
    ASSERT_NO_FATAL_FAILURE(expect_each_once(schedule, 6 * 12)) << seed;
    lost += schedule.lost();
  }
  EXPECT_GT(lost, 100);
}

TEST(Coordinator, TakesSynchronousStepsWithoutThoseThatAreLost) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Schedule whole(options_of(3, 5, 0), seed, 0);
    ASSERT_TRUE(whole.run());
    ASSERT_NO_FATAL_FAILURE(expect_each_once(whole, 5 * 12));
    Schedule schedule(options_of(3, 5, 0), seed, 0.2);
    ASSERT_TRUE(schedule.run()) << seed;
    ASSERT_EQ(schedule.steps(), 5);
  }
}

TEST(Coordinator, SharesAStepOutByPlace) {
  Coordinator coordinator(options_of(2, 3, 0));
  const int second = coordinator.join(1, 0);
  EXPECT_FALSE(coordinator.try_start(second)) << "the other one has not come";
  const int first = coordinator.join(0, 0);
  EXPECT_EQ(coordinator.try_start(second)->samples, (IndexRange{6, 6}));
  EXPECT_EQ(coordinator.try_start(first)->samples, (IndexRange{0, 6}));
  coordinator.finish(second, 1, {.weight = 1});
  EXPECT_FALSE(coordinator.complete_round());
  coordinator.finish(first, 1, {.weight = 2});
  const auto round = coordinator.complete_round();
  ASSERT_TRUE(round);
  EXPECT_EQ(round->workers, (std::vector{first, second}));
  EXPECT_EQ(round->weight, 3);
  EXPECT_FALSE(coordinator.is_turn_over(first, 1));
  coordinator.end_round(0.5, "");
  EXPECT_TRUE(coordinator.is_turn_over(first, 1));
  EXPECT_EQ(coordinator.take_figures()->norm, 0.5);
  EXPECT_FALSE(coordinator.take_figures());
}

TEST(Coordinator, NoLongerKnowsAWorkerWhoseLeaseIsOver) {
  Coordinator coordinator(options_of(1, 3, std::nullopt));
  const int worker = coordinator.join(0, 0);
  const auto before = coordinator.try_start(worker);
  const auto lost = coordinator.expire(11);
  ASSERT_EQ(lost.size(), 1U);
  coordinator.resolve_lost(lost[0], false);
  EXPECT_THROW(coordinator.record_heartbeat(worker, 12), RendezvousError);
  EXPECT_THROW(coordinator.finish(worker, 1, {}), RendezvousError);
  EXPECT_EQ(coordinator.try_start(coordinator.join(0, 12))->samples, before->samples);
}

TEST(Coordinator, TakesNoShareFromAWorkerThatLeaves) {
  Coordinator coordinator(options_of(2, 3, 0));
  const int one = coordinator.join(0, 0), other = coordinator.join(1, 0);
  static_cast<void>(coordinator.try_start(one));
  EXPECT_FALSE(coordinator.may_leave(other)) << "it has a share of the step";
  EXPECT_EQ(coordinator.try_start(other)->samples, (IndexRange{6, 6}));
  for (const int worker : {one, other}) coordinator.finish(worker, 1, {.weight = 1});
  EXPECT_FALSE(coordinator.may_leave(other)) << "its gradient is not applied";
  coordinator.end_round(1, "");
  EXPECT_EQ(coordinator.try_start(one)->samples, (IndexRange{12, 12}));
  EXPECT_TRUE(coordinator.may_leave(other));
  coordinator.remove_worker(other);
  coordinator.finish(one, 2, {.weight = 1});
  EXPECT_TRUE(coordinator.complete_round());
  coordinator.end_round(1, "");
  EXPECT_EQ(coordinator.take_figures()->lost_samples, 0);
  EXPECT_EQ(coordinator.take_figures()->lost_samples, 0);
}

// A server has lost the gradient of a worker that is lost itself.
TEST(Coordinator, GoesOnWithoutAWorkerThatCannotPushAgain) {
  Coordinator coordinator(options_of(2, 3, 0));
  const int one = coordinator.join(0, 0), other = coordinator.join(1, 0);
  for (const int worker : {one, other}) {
    static_cast<void>(coordinator.try_start(worker));
    coordinator.finish(worker, 1, {.loss = 2, .weight = 1, .valid = 3});
  }
  coordinator.record_heartbeat(one, 20);
  for (const Coordinator::Lost& lost : coordinator.expire(20))
    coordinator.resolve_lost(lost, false);
  EXPECT_EQ(coordinator.complete_round()->workers, (std::vector{one, other}));
  for (const int worker : {one, other}) coordinator.push_again(worker);
  EXPECT_FALSE(coordinator.complete_round()) << "one pushes again";
  coordinator.finish(one, 1, {.loss = 2, .weight = 1, .valid = 3});
  const auto round = coordinator.complete_round();
  ASSERT_TRUE(round);
  EXPECT_EQ(round->workers, std::vector{one});
  EXPECT_EQ(round->weight, 1);
  coordinator.end_round(1, "");
  const auto figures = coordinator.take_figures();
  EXPECT_EQ(figures->lost_samples, 6);
  EXPECT_EQ(figures->valid, 3);
}

// A run that is resumed in the middle of a step deals out what is left, and tells of the step as a
// whole.
TEST(Coordinator, GoesOnBehindPartsThatAreDone) {
  CoordinatorOptions options = options_of(2, 5, std::nullopt);
  options.first_step = 3;
  options.first_ordinal = 24;
  options.parts_done = 3;
  options.figures[3] = {.step = 3, .loss = 4, .weight = 2};
  options.figures[4] = {.step = 4, .loss = 1, .weight = 1};
  Coordinator coordinator(options);
  const int one = coordinator.join(0, 0), other = coordinator.join(1, 0);
  EXPECT_EQ(coordinator.take_figures()->loss, 4);
  EXPECT_EQ(coordinator.try_start(one)->samples, (IndexRange{42, 6}));
  EXPECT_EQ(coordinator.try_start(other)->step, 5);
  EXPECT_FALSE(coordinator.take_figures());
  coordinator.finish(one, 1, {.loss = 2, .weight = 1});
  EXPECT_EQ(coordinator.take_figures()->loss, 3);
}

TEST(Coordinator, DealsNothingOutWhileHeld) {
  Coordinator coordinator(options_of(1, 3, std::nullopt));
  const int worker = coordinator.join(0, 0);
  static_cast<void>(coordinator.try_start(worker));
  coordinator.pause();
  EXPECT_FALSE(coordinator.is_idle());
  coordinator.finish(worker, 1, {.weight = 1});
  EXPECT_TRUE(coordinator.is_idle());
  EXPECT_EQ(coordinator.parts_done(), 1);
  EXPECT_FALSE(coordinator.try_start(worker));
  coordinator.resume();
  EXPECT_TRUE(coordinator.try_start(worker));
}

}  // namespace
}  // namespace troika
