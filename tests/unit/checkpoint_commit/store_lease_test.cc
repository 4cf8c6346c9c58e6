// Who may write to a store without locks, through outages, stops and slow requests. Each process is
// a thread, and one runs at a time, by a clock of the test's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/checkpoint/store_lease.h>
#include <troika/storage/outage.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troika {
namespace {

// Has threads wait in a time that passes as soon as all of them do.
class VirtualTime {
 public:
  void run(const std::vector<std::function<void()>>& processes) {
    wakes_.assign(processes.size(), 0);
    std::vector<std::jthread> threads;
    for (std::size_t self = 0; self < processes.size(); ++self) {
      threads.emplace_back([this, self, &act = processes[self]] {
        own() = self;
        wait_for_turn();
        act();
        yield(std::numeric_limits<double>::infinity());
      });
    }
  }
  [[nodiscard]] double now() const { return now_; }
  void sleep(double seconds) {
    yield(now_ + seconds);
    wait_for_turn();
  }
  void sleep_until(double time) { sleep(std::max(0.0, time - now_)); }

 private:
  static std::size_t& own() {
    thread_local std::size_t self = 0;
    return self;
  }
  void yield(double wake) {
    const std::scoped_lock lock(mutex_);
    wakes_[own()] = wake;
    const auto next = std::ranges::min_element(wakes_);
    running_ = static_cast<std::size_t>(next - wakes_.begin());
    if (*next < std::numeric_limits<double>::infinity()) now_ = std::max(now_, *next);
    turn_.notify_all();
  }
  void wait_for_turn() {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [this] { return running_ == own(); });
  }

  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<double> wakes_;
  std::size_t running_ = 0;
  double now_ = 0;
};

struct Store {
  VirtualTime time;
  std::optional<std::string> mark;
  std::vector<std::string> commits;  // by whom
};

struct Away {
  double from = 0, to = 0;
};

// What one process does with the store, which it cannot reach for some time.
class Mark final : public MarkFile {
 public:
  Mark(Store& store, std::vector<Away> away = {}) : store_(store), away_(std::move(away)) {}

  [[nodiscard]] std::optional<std::string> read() const override {
    repeat([this] { return reason(); });
    return store_.mark;
  }
  void write(const std::string& text, const std::function<void()>& check) override {
    repeat([&] {
      check();
      store_.time.sleep(std::exchange(request_time, 0));
      if (reason().empty()) store_.mark = text;
      return reason();
    });
  }
  void remove() override { store_.mark.reset(); }
  [[nodiscard]] Seconds now() const override { return Seconds(store_.time.now()); }
  void wait(Seconds time) const override { store_.time.sleep(time.count()); }

  // As a checkpoint is committed.
  void commit(StoreLease& place, const std::string& who) const {
    repeat([&] {
      place.check();
      if (reason().empty()) store_.commits.push_back(who);
      return reason();
    });
  }

  double request_time = 0;  // of the next attempt to write

 private:
  [[nodiscard]] std::string reason() const {
    const double now = store_.time.now();
    const bool is_away = std::ranges::any_of(
        away_, [now](const Away& each) { return each.from <= now && now < each.to; });
    return is_away ? "it is away" : "";
  }
  void repeat(const std::function<std::string()>& attempt) const {
    const RetryClock clock{[this] { return store_.time.now(); },
                           [this](double seconds) { store_.time.sleep(seconds); }};
    const std::string last = repeat_attempts(
        300, attempt, [](const std::string&) { return true; }, clock);
    if (!last.empty()) throw StorageError(last);
  }

  Store& store_;
  std::vector<Away> away_;
};

OwnerMark mark_of(const std::string& host) {
  return {"process 7 on host " + host, "processes of " + host, 7, "1000", 0};
}

StoreLease place_of(Mark& mark, const std::string& host) {
  return {mark, mark_of(host), "'s3://bucket/run'", "stop it"};
}

void send_heartbeats(Store& store, StoreLease& place, double until) {
  while (store.time.now() < until) {
    store.time.sleep(StoreLease::kHeartbeatInterval.count());
    try {
      place.renew();
    } catch (const StorageError&) {
      continue;
    }
  }
}

std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kHeldByA = "'s3://bucket/run' is being written by process 7 on host a";

// The second run comes when the store is back, or just before it goes, or meanwhile.
TEST(StoreLease, IsNotTakenFromAnOwnerThatLivesHoweverLongTheStoreWasAway) {
  for (const double seconds : {0.0, 1.0, 7.0, 31.0, 63.5, 95.0, 170.0, 290.0}) {
    for (const double phase : {0.0, 2.5, 4.9}) {
      for (const double begin : {-seconds - 0.5, -seconds, -0.5, 0.01, 3.0}) {
        Store store;
        const double back = 100 + phase + seconds;
        Mark a(store, {{100 + phase, back}}), b(store, {{100 + phase, back}});
        StoreLease first = place_of(a, "a"), second = place_of(b, "b");
        std::string refused;
        store.time.run({[&] {
                          first.take();
                          send_heartbeats(store, first, back + 300);
                        },
                        [&] {
                          store.time.sleep_until(back + begin);
                          refused = refusal_of([&] { second.take(); });
                        }});
        EXPECT_EQ(refused, kHeldByA) << seconds << " " << phase << " " << begin;
        EXPECT_FALSE(first.is_lost());
      }
    }
  }
}

// The first cannot reach the store while the second can. What it was about to commit is not
// written when it can again, whether the second still runs or has ended.
TEST(StoreLease, OfALoserIsNeverCommittedOverTheWinners) {
  for (const bool has_ended : {false, true}) {
    Store store;
    Mark a(store, {{100, 350}}), b(store);
    StoreLease first = place_of(a, "a"), second = place_of(b, "b");
    std::string lost;
    bool has_committed = false;
    store.time.run({[&] {
                      first.take();
                      send_heartbeats(store, first, 600);
                    },
                    [&] {
                      store.time.sleep_until(101);
                      lost = refusal_of([&] {
                        a.commit(first, "a");
                        has_committed = true;
                      });
                    },
                    [&] {
                      store.time.sleep_until(120);
                      second.take();
                      EXPECT_LT(store.time.now(), 120 + 2 * StoreLease::kLongestTake.count());
                      b.commit(second, "b");
                      if (has_ended) return second.release();
                      send_heartbeats(store, second, 600);
                    }});
    EXPECT_FALSE(has_committed);
    EXPECT_THAT(lost, testing::StartsWith(std::string("'s3://bucket/run' has been taken by ") +
                                          (has_ended ? "another run" : "process 7 on host b")));
    EXPECT_EQ(store.commits, std::vector<std::string>{"b"});
    EXPECT_TRUE(first.is_lost());
    EXPECT_FALSE(second.is_lost());
    EXPECT_NE(refusal_of([&] { a.commit(first, "a"); }), "");  // for good
    EXPECT_EQ(store.mark.has_value(), !has_ended);  // the loser does not write its own again
  }
}

// A request of an owner that was under way when its place was taken.
TEST(StoreLease, IsOfOneOfTwoWhoseWritesCross) {
  Store store;
  Mark a(store), b(store);
  StoreLease first = place_of(a, "a"), second = place_of(b, "b");
  std::string refused;
  store.time.run({[&] {
                    first.take();
                    store.time.sleep_until(164.9);  // it was stopped, say
                    a.request_time = StoreLease::kRequestTime.count() - 1;
                    first.renew();
                    a.commit(first, "a");
                  },
                  [&] {
                    store.time.sleep_until(105);
                    refused = refusal_of([&] { second.take(); });
                  }});
  EXPECT_EQ(refused, kHeldByA);
  EXPECT_EQ(store.commits, std::vector<std::string>{"a"});
}

// Longer than any request should take: neither of them goes on.
TEST(StoreLease, IsOfNoOneWhereARequestCameTooLate) {
  Store store;
  Mark a(store), b(store);
  StoreLease first = place_of(a, "a"), second = place_of(b, "b");
  store.time.run({[&] {
                    first.take();
                    store.time.sleep_until(164.9);
                    a.request_time = StoreLease::kRequestTime.count() + 5;
                    first.renew();
                    EXPECT_NE(refusal_of([&] { a.commit(first, "a"); }), "");
                  },
                  [&] {
                    store.time.sleep_until(105);
                    second.take();
                    store.time.sleep_until(200);
                    EXPECT_NE(refusal_of([&] { b.commit(second, "b"); }), "");
                  }});
  EXPECT_TRUE(store.commits.empty());
}

TEST(StoreLease, StaysWhereTheMarkIsRemovedByHand) {
  Store store;
  Mark a(store);
  StoreLease place = place_of(a, "a");
  store.time.run({[&] {
    place.take();
    for (int i = 0; i < 20; ++i) {
      store.time.sleep(StoreLease::kHeartbeatInterval.count());
      store.mark.reset();
      place.check();
      place.renew();
    }
    place.release();
  }});
  EXPECT_FALSE(place.is_lost());
  EXPECT_FALSE(store.mark);
}

TEST(StoreLease, OfARunThatHasDiedIsTakenAfterAWhile) {
  Store store;
  store.mark = format_mark(mark_of("a"));
  Mark b(store);
  StoreLease place = place_of(b, "b");
  store.time.run({[&] { place.take(); }});
  EXPECT_EQ(store.time.now(), StoreLease::kLongestTake.count());
  ASSERT_TRUE(store.mark);
  EXPECT_EQ(parse_mark(*store.mark)->holder, "process 7 on host b");
}

}  // namespace
}  // namespace troika
