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
  // Members that sleep do not look up before soon(): a wake-up that is lost fails the test.
  explicit Members(int count, Seconds spin = Seconds(20e-6), Shape shape = {},
                   Fences fences = Fences::kAtSleep) {
    shape.members = count;
    std::vector<Board> boards;
    for (int i = 0; i < count; ++i) boards.push_back(Board::create(shape, fences));
    for (int i = 0; i < count; ++i) {
      parties_.push_back(
          std::make_unique<Party>(boards, shape, i, Party::Patience{spin, spin, Seconds(60)}));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(parties_.size()); }
  [[nodiscard]] Party& party(int member) { return *parties_[static_cast<std::size_t>(member)]; }

  // Runs `body` once a member, in threads; what one throws is thrown here, the first member's
  // first.
  void run(const std::function<void(int member, Party& party)>& body) {
    std::vector<std::exception_ptr> errors(parties_.size());
    std::vector<std::thread> threads;
    for (int member = 0; member < size(); ++member) {
      threads.emplace_back([&, member] {
        try {
          body(member, party(member));
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
  std::vector<std::unique_ptr<Party>> parties_;
};

}  // namespace troika::shm::testing
