// Groups in memory, whose members are threads of one process: what is exchanged by state machines
// of ranks can be held against arithmetic in the same test. Every operation has a deadline.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <troika/base/error.h>
#include <troika/comm/group.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/silent_engine.h"

namespace troika::test {

// What the members of a group have in common.
class MemoryHub {
 public:
  explicit MemoryHub(int members) : given_(static_cast<std::size_t>(members)) {}

  // Returns what all members have given, by member, once all have.
  std::vector<at::Tensor> meet(int member, const at::Tensor& given, const Call& call) {
    std::unique_lock lock(mutex_);
    given_[static_cast<std::size_t>(member)] = given.clone();
    const std::int64_t meeting = meetings_;
    if (++arrived_ == std::ssize(given_)) {
      arrived_ = 0;
      ++meetings_;
      met_ = given_;
      changed_.notify_all();
    } else {
      wait(lock, call, [&] { return meetings_ != meeting; });
    }
    return met_;
  }
  void send(int from, int to, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    sent_[{from, to}].push_back(tensor.clone());
    changed_.notify_all();
  }
  at::Tensor receive(int from, int to, const Call& call) {
    std::unique_lock lock(mutex_);
    auto& queue = sent_[{from, to}];
    wait(lock, call, [&] { return !queue.empty(); });
    at::Tensor tensor = std::move(queue.front());
    queue.pop_front();
    return tensor;
  }

 private:
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const Call& call, const Done& done) {
    if (changed_.wait_for(lock, call.deadline.left(), done)) return;
    throw DeadlineError("members of a group in memory have not come to " + std::string(call.label));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> given_, met_;
  std::int64_t arrived_ = 0, meetings_ = 0;
  std::map<std::pair<int, int>, std::deque<at::Tensor>> sent_;
};

// A member's engine: all_reduce, in the order of the members, all_gather and exchange.
class MemoryEngine final : public SilentEngine {
 public:
  MemoryEngine(std::shared_ptr<MemoryHub> hub, int member)
      : hub_(std::move(hub)), member_(member) {}

  Work all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) override {
    const std::vector<at::Tensor> all = hub_->meet(member_, tensor, call);
    at::Tensor sum = all.front().clone();
    for (std::size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
    check(op == ReduceOp::kSum || op == ReduceOp::kAverage, "a group in memory adds up");
    if (op == ReduceOp::kAverage) sum.div_(static_cast<double>(all.size()));
    at::Tensor(tensor).copy_(sum);
    return {};
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const std::int64_t>,
                  const Call& call) override {
    at::Tensor(output).copy_(at::cat(hub_->meet(member_, input, call)));
    return {};
  }
  Work exchange(std::span<const Transfer> transfers, const Call& call) override {
    for (const Transfer& each : transfers) {
      if (each.direction == Transfer::Direction::kSend) hub_->send(member_, each.peer, each.tensor);
    }
    for (const Transfer& each : transfers) {
      if (each.direction == Transfer::Direction::kSend) continue;
      at::Tensor(each.tensor).copy_(hub_->receive(each.peer, member_, call));
    }
    return {};
  }

 private:
  std::shared_ptr<MemoryHub> hub_;
  int member_;
};

// Returns a member's group, of world ranks from 0 on. One alone exchanges nothing.
inline Group group_of(const std::shared_ptr<MemoryHub>& hub, int members, int member) {
  if (members == 1) return {};
  std::vector<int> ranks(static_cast<std::size_t>(members));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {"memory", ranks, member, 0, std::make_shared<MemoryEngine>(hub, member), 1, {}};
}

// Runs `member(group)` for each of so many members, on a thread each, and fails where one throws.
inline void run_members(int count, const std::function<void(const Group&)>& member) {
  const auto hub = std::make_shared<MemoryHub>(count);
  std::vector<std::string> failures(static_cast<std::size_t>(count));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        member(group_of(hub, count, rank));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();
  for (int rank = 0; rank < count; ++rank) {
    EXPECT_EQ(failures[static_cast<std::size_t>(rank)], "") << "member " << rank;
  }
}

}  // namespace troika::test
