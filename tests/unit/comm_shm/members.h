// A group in one process: a thread a member, all on the same mappings, so that the thread sanitizer
// sees what they do to each other's memory.
#pragma once

#include <gtest/gtest.h>
#include <troika/comm/shm/collective.h>
#include <troika/comm/shm/mailbox.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace troika::shm::testing {

inline Deadline soon() {
  return Deadline::in(Seconds(60));
}

class Members {
 public:
  // Members that sleep do not wake by themselves before soon(): a wake-up that is lost fails the
  // test.
  explicit Members(int count, Seconds spin = Seconds(20e-6), Shape shape = {},
                   Fences fences = Fences::kOnWait) {
    shape.members = count;
    std::vector<ControlBlock> control_blocks;
    for (int i = 0; i < count; ++i) control_blocks.push_back(ControlBlock::create(shape, fences));
    for (int i = 0; i < count; ++i) {
      groups_.push_back(std::make_unique<ShmGroup>(control_blocks, shape, i,
                                                   ShmGroup::Backoff{spin, spin, Seconds(60)}));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] ShmGroup& group(int member) { return *groups_[static_cast<std::size_t>(member)]; }

  // Runs `body` once a member, in threads; what one throws is thrown here, the first member's
  // first.
  void run(const std::function<void(int member, ShmGroup& group)>& body) {
    std::vector<std::exception_ptr> errors(groups_.size());
    std::vector<std::thread> threads;
    for (int member = 0; member < size(); ++member) {
      threads.emplace_back([&, member] {
        try {
          body(member, group(member));
        } catch (...) {
          errors[static_cast<std::size_t>(member)] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

 private:
  std::vector<std::unique_ptr<ShmGroup>> groups_;
};

}  // namespace troika::shm::testing
