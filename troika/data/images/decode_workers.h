// Shares work among the cores of a rank: threads that wait for it, and the caller's. ATen's are for
// the model, and may be fewer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace troika {

// Returns the cores of this rank: those of the process, divided by the ranks of the host.
[[nodiscard]] int cores_of_rank();

// Thread safe: calls take turns.
class DecodeWorkers {
 public:
  // Starts `threads` - 1 threads at the first call of for_each(); 0 stands for cores_of_rank().
  explicit DecodeWorkers(std::int64_t threads);
  ~DecodeWorkers();
  DecodeWorkers(const DecodeWorkers&) = delete;
  DecodeWorkers& operator=(const DecodeWorkers&) = delete;

  // Calls work(i) for each i in [0, count), in any order, and returns once all are done. Rethrows
  // the error of the smallest i that has thrown one; those after it may not have been called.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work);

 private:
  class Threads;
  std::unique_ptr<Threads> threads_;
};

}  // namespace troika
