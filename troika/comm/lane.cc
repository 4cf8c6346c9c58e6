#include <troika/comm/lane.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace troika {

struct Lane::State {
  Order order;
  std::mutex mutex;
  std::condition_variable changed;  // a task was added or is done, or stopping was set
  std::deque<std::shared_ptr<Task>> waiting;
  int running = 0;
  bool stopping = false;
  std::thread thread;

  void work_until_stopped();
  // Both under the mutex.
  [[nodiscard]] bool may_take(const Task& task) const;
  void take(const Task& task);
};

class Lane::Task : public Work::State, public std::enable_shared_from_this<Task> {
 public:
  Task(std::shared_ptr<Lane::State> lane, Job job) : lane_(std::move(lane)), job_(std::move(job)) {}

  bool done() override {
    const std::lock_guard lock(lane_->mutex);
    return done_;
  }

  void wait() override {
    // The error comes from `run`; this is for a task that `run` never reaches.
    const auto give_up =
        job_.deadline.at() + std::chrono::duration_cast<Clock::duration>(kForTheError);
    std::unique_lock lock(lane_->mutex);
    while (!done_) {
      if (lane_->may_take(*this)) {
        lane_->take(*this);
        lock.unlock();
        run();
        lock.lock();
      } else if (lane_->changed.wait_until(lock, give_up) == std::cv_status::timeout && !done_) {
        lock.unlock();
        std::rethrow_exception(job_.overdue());
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

  void on_done(std::function<void(std::exception_ptr)> callback) override {
    {
      const std::lock_guard lock(lane_->mutex);
      if (!done_) return callbacks_.push_back(std::move(callback));
    }
    callback(error_);
  }

  // Called by whoever has taken the task.
  void run() {
    std::exception_ptr error;
    try {
      job_.run();
    } catch (...) {
      error = std::current_exception();
    }
    job_.run = nullptr;  // lets go of its tensors
    finish(error);
  }

 private:
  // The callbacks come first, so that whoever has waited sees what they did.
  void finish(const std::exception_ptr& error) {
    std::unique_lock lock(lane_->mutex);
    while (!callbacks_.empty()) {
      std::vector<std::function<void(std::exception_ptr)>> callbacks;
      callbacks.swap(callbacks_);
      lock.unlock();
      for (const auto& callback : callbacks) callback(error);
      lock.lock();
    }
    error_ = error;
    done_ = true;
    --lane_->running;
    lane_->changed.notify_all();
  }

  std::shared_ptr<Lane::State> lane_;
  Job job_;
  // Guarded by the lane's mutex.
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

bool Lane::State::may_take(const Task& task) const {
  if (waiting.empty()) return false;
  if (order == Order::kAsAdded) return running == 0 && waiting.front().get() == &task;
  return std::any_of(waiting.begin(), waiting.end(),
                     [&](const auto& each) { return each.get() == &task; });
}

void Lane::State::take(const Task& task) {
  std::erase_if(waiting, [&](const auto& each) { return each.get() == &task; });
  ++running;
}

void Lane::State::work_until_stopped() {
  std::unique_lock lock(mutex);
  const auto startable = [this] {
    return !waiting.empty() && (order == Order::kIndependent || running == 0);
  };
  while (true) {
    changed.wait(lock, [&] { return startable() || (stopping && waiting.empty()); });
    if (!startable()) return;
    const std::shared_ptr<Task> task = waiting.front();
    take(*task);
    lock.unlock();
    task->run();
    lock.lock();
  }
}

Lane::Lane(Order order) : state_(std::make_shared<State>()) {
  state_->order = order;
  state_->thread = std::thread([state = state_.get()] { state->work_until_stopped(); });
}

Lane::~Lane() {
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->running == 0; });
}

Work Lane::add(Job job) {
  auto task = std::make_shared<Task>(state_, std::move(job));
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(task);
  }
  state_->changed.notify_all();
  return Work(std::move(task));
}

}  // namespace troika
