#include <troika/data/images/decode_workers.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <thread>
#include <vector>

namespace troika {

int cores_of_rank() {
  // Launchers say it, ours and torchrun. Those of MPI bind each rank to its cores instead.
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  const std::string_view digits = text == nullptr ? "" : text;
  int ranks = 1;
  std::from_chars(digits.data(), digits.data() + digits.size(), ranks);
  return threads_of_rank(usable_cores(), std::max(1, ranks));
}

class DecodeWorkers::Threads {
 public:
  explicit Threads(std::int64_t threads) : count_(threads > 0 ? threads : cores_of_rank()) {}

  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) {
    const std::scoped_lock turn(turn_);
    start();
    {
      const std::scoped_lock lock(mutex_);
      work_ = &work;
      end_ = count;
      next_ = 0;
      failed_at_ = count;
      failure_ = nullptr;
      busy_ = static_cast<std::int64_t>(threads_.size());
      ++round_;
    }
    begun_.notify_all();
    take_turns(work);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void start() {
    if (!threads_.empty()) return;
    for (std::int64_t i = 1; i < count_; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { wait_for_work(stop); });
    }
  }

  void wait_for_work(const std::stop_token& stop) {
    std::int64_t done = 0;  // rounds
    while (true) {
      std::unique_lock lock(mutex_);
      if (!begun_.wait(lock, stop, [&] { return round_ > done; })) return;
      done = round_;
      lock.unlock();
      take_turns(*work_);
      lock.lock();
      if (--busy_ == 0) ended_.notify_all();
    }
  }

  void take_turns(const std::function<void(std::int64_t)>& work) {
    for (std::int64_t i = next_++; i < end_; i = next_++) {
      try {
        if (i < failed_at_) work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        if (i >= failed_at_) continue;
        failed_at_ = i;
        failure_ = std::current_exception();
      }
    }
  }

  std::int64_t count_;
  std::mutex turn_;  // held by the caller under way
  std::mutex mutex_;
  std::condition_variable_any begun_, ended_;
  const std::function<void(std::int64_t)>* work_ = nullptr;
  std::int64_t end_ = 0, busy_ = 0, round_ = 0;
  std::atomic<std::int64_t> next_ = 0, failed_at_ = 0;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // the last member: they end before what they use
};

DecodeWorkers::DecodeWorkers(std::int64_t threads) : threads_(std::make_unique<Threads>(threads)) {}

DecodeWorkers::~DecodeWorkers() = default;

void DecodeWorkers::for_each(std::int64_t count, const std::function<void(std::int64_t)>& work) {
  threads_->for_each(count, work);
}

}  // namespace troika
