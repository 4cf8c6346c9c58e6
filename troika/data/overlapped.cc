#include <troika/data/overlapped.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace troika {

void run_overlapped(std::int64_t count, FunctionRef<void(std::int64_t)> read) {
  constexpr std::int64_t kAtOnce = 16;
  std::atomic<std::int64_t> next = 0;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        read(i);
      } catch (...) {
        failures[static_cast<std::size_t>(i)] = std::current_exception();
        next = count;  // those before it are under way, or done
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < std::min(kAtOnce, count); ++i) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace troika
