#include <troika/base/failure_timing.h>
#include <troika/comm/work_queue.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace troika {

struct WorkQueue::State {
  Order order;
  std::mutex mutex;
  std::condition_variable thread_wakeup;  // there is something to take, or stopping was set
  std::condition_variable for_waiters;    // a task is done
  std::deque<std::shared_ptr<Task>> waiting;
  int running = 0;
  bool stopping = false;
  // Since the thread last looked for such tasks; and whether it looks again within kSoon.
  bool soon_added = false;
  bool looks_again = false;
  std::thread thread;

  void work_until_stopped();
  // The others under the mutex.
  [[nodiscard]] bool can_take() const {
    return !waiting.empty() && (order == Order::kIndependent || running == 0);
  }
  // What whoever waits for `task` can run, if anything: the task, or what comes before it.
  [[nodiscard]] std::shared_ptr<Task> take_for(const Task& task);
  void take(const Task& task);
  // Wakes the thread if it would not look in time.
  void notify_thread();
};

class WorkQueue::Task : public Work::State, public std::enable_shared_from_this<Task> {
 public:
  Task(std::shared_ptr<WorkQueue::State> queue, Job job)
      : queue_(std::move(queue)),
        job_(std::move(job)),
        due_(job_.start == Start::kSoon ? Deadline::in(kSoon).at() : Clock::time_point::min()) {}

  // By when it is over, with all that it waits for, unless something hangs.
  [[nodiscard]] Clock::time_point latest() const {
    return std::max(job_.latest, job_.deadline.at());
  }
  [[nodiscard]] const Deadline& deadline() const { return job_.deadline; }
  // When the queue's thread takes it at the latest; under the queue's mutex.
  [[nodiscard]] Clock::time_point due() const { return due_; }
  void hurry() { due_ = Clock::time_point::min(); }

  bool done() override {
    const std::lock_guard lock(queue_->mutex);
    return done_;
  }

  void wait() override {
    // The error comes from `run`; this is for a task that `run` never reaches.
    const auto wait_limit = job_.deadline.at() +
                            std::chrono::duration_cast<Clock::duration>(failure_timing::kDiagnosis);
    std::unique_lock lock(queue_->mutex);
    while (!done_) {
      if (const std::shared_ptr<Task> task = queue_->take_for(*this)) {
        lock.unlock();
        task->run();
        lock.lock();
      } else if (queue_->for_waiters.wait_until(lock, wait_limit) == std::cv_status::timeout &&
                 !done_) {
        lock.unlock();
        std::rethrow_exception(job_.overdue());
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

  void on_done(std::function<void(std::exception_ptr)> callback) override {
    {
      const std::lock_guard lock(queue_->mutex);
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
    std::unique_lock lock(queue_->mutex);
    while (!callbacks_.empty()) {
      std::vector<std::function<void(std::exception_ptr)>> callbacks;
      callbacks.swap(callbacks_);
      lock.unlock();
      for (const auto& callback : callbacks) callback(error);
      lock.lock();
    }
    error_ = error;
    done_ = true;
    --queue_->running;
    queue_->for_waiters.notify_all();
    queue_->notify_thread();
  }

  std::shared_ptr<WorkQueue::State> queue_;
  Job job_;
  // Guarded by the queue's mutex.
  Clock::time_point due_;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

std::shared_ptr<WorkQueue::Task> WorkQueue::State::take_for(const Task& task) {
  if (!can_take()) return nullptr;
  if (order == Order::kAsAdded && waiting.front()->latest() > task.deadline().at()) {
    // Whoever waits must not be held up beyond its own deadline.
    waiting.front()->hurry();
    notify_thread();
    return nullptr;
  }
  const auto wanted =
      order == Order::kAsAdded
          ? waiting.begin()
          : std::ranges::find_if(waiting, [&](const auto& each) { return each.get() == &task; });
  if (wanted == waiting.end()) return nullptr;  // it is being run
  std::shared_ptr<Task> taken = *wanted;
  take(*taken);
  return taken;
}

void WorkQueue::State::take(const Task& task) {
  std::erase_if(waiting, [&](const auto& each) { return each.get() == &task; });
  ++running;
}

void WorkQueue::State::work_until_stopped() {
  // Where tasks that start soon come one after another, to be woken for each would cost more than
  // to look for them.
  constexpr int kMostIdleLooks = 50;
  int idle_looks = kMostIdleLooks;
  std::unique_lock lock(mutex);
  const auto look_again_at = [&](Clock::time_point time) {
    looks_again = true;
    thread_wakeup.wait_until(lock, time);
    looks_again = false;
  };
  while (!stopping || !waiting.empty()) {
    idle_looks = std::exchange(soon_added, false) ? 0 : std::min(idle_looks + 1, kMostIdleLooks);
    if (can_take() && (stopping || waiting.front()->due() <= Clock::now())) {
      const std::shared_ptr<Task> task = waiting.front();
      take(*task);
      lock.unlock();
      task->run();
      lock.lock();
    } else if (can_take()) {
      look_again_at(waiting.front()->due());
    } else if (idle_looks < kMostIdleLooks) {
      look_again_at(Deadline::in(kSoon).at());
    } else {
      thread_wakeup.wait(lock);
    }
  }
}

void WorkQueue::State::notify_thread() {
  if (!can_take()) return;
  const bool at_once = waiting.front()->due() == Clock::time_point::min();
  if (at_once || !looks_again) thread_wakeup.notify_one();
}

WorkQueue::WorkQueue(Order order) : state_(std::make_shared<State>()) {
  state_->order = order;
  state_->thread = std::thread([state = state_.get()] { state->work_until_stopped(); });
}

WorkQueue::~WorkQueue() {
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->thread_wakeup.notify_one();
  }
  state_->thread.join();
  std::unique_lock lock(state_->mutex);
  // A caller that waits may still be running a task that it has taken.
  state_->for_waiters.wait(lock, [this] { return state_->running == 0; });
}

Work WorkQueue::add(Job job) {
  const bool soon = job.start == Start::kSoon;
  auto task = std::make_shared<Task>(state_, std::move(job));
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(task);
    if (soon) {
      state_->soon_added = true;
    } else if (state_->order == Order::kAsAdded) {
      for (const auto& before : state_->waiting) before->hurry();
    }
    state_->notify_thread();
  }
  return Work(std::move(task));
}

}  // namespace troika
