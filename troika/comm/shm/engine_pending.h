// The operations that the engine has started and not finished. The thread that waits for one
// finishes it.
#pragma once

#include <troika/comm/shm/engine.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace troika::shm {

// An operation that is finished by the thread that waits for it, asks whether it is done, or starts
// a later one.
class Engine::Pending : public Work::State {
 public:
  bool done() final {
    if (done_.load(std::memory_order_acquire)) return true;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // another thread waits for it now
    try {
      if (done_ || !ready()) return done_;
    } catch (...) {
      end(std::current_exception());
      return true;
    }
    finish();
    return true;
  }

  void wait() final {
    const std::lock_guard lock(mutex_);
    if (!done_) finish();
    if (error_) std::rethrow_exception(error_);
  }

  void on_done(std::function<void(std::exception_ptr)> callback) final {
    const std::lock_guard lock(mutex_);
    if (done_) {
      callback(error_);
    } else if (!callback_) {
      callback_ = std::move(callback);
    } else {
      more_callbacks_.push_back(std::move(callback));
    }
  }

  [[nodiscard]] virtual Deadline deadline() const = 0;

 protected:
  // Returns whether body() would return or throw without waiting, so that callers that only ask
  // learn of failures, too. May throw what body() would. body() does the operation, at most once,
  // and then releases its tensors.
  [[nodiscard]] virtual bool ready() = 0;
  virtual void body() = 0;

 private:
  void finish() {
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    end(std::move(error));
  }

  void end(std::exception_ptr error) {
    error_ = std::move(error);
    if (callback_) callback_(error_);
    for (const auto& callback : more_callbacks_) callback(error_);
    callback_ = nullptr;
    more_callbacks_.clear();
    done_.store(true, std::memory_order_release);
  }

  std::mutex mutex_;
  std::atomic<bool> done_ = false;
  std::exception_ptr error_;
  std::function<void(std::exception_ptr)> callback_;
  std::vector<std::function<void(std::exception_ptr)>> more_callbacks_;
};

// A collective, with all that it needs in one piece of memory.
template <class Finish>
class Engine::Operation final : public Engine::Pending {
 public:
  Operation(Engine& engine, const OperationContext& context, const Collective& collective,
            at::Tensor contribution, Finish finish)
      : engine_(engine),
        name_(context),
        collective_(collective),
        contribution_(std::move(contribution)),
        finish_(std::move(finish)) {}

  [[nodiscard]] const OwnedContext& name() const { return name_; }
  [[nodiscard]] Deadline deadline() const override { return name_.get().deadline; }
  void announce() { engine_.announce(collective_, name_.get()); }
  void body() override {
    const OperationContext context = name_.get();
    engine_.run(context, [&] { (*finish_)(collective_, context.deadline); });
    finish_.reset();
    contribution_ = at::Tensor();
  }

 private:
  [[nodiscard]] bool ready() override {
    return collective_.ready() || collective_.is_over(deadline());
  }

  Engine& engine_;
  OwnedContext name_;
  Collective collective_;
  at::Tensor contribution_;
  std::optional<Finish> finish_;
};

// An exchange that lacks nothing but what others send.
class Engine::SmallExchange final : public Engine::Pending {
 public:
  SmallExchange(Engine& engine, const OperationContext& context,
                std::shared_ptr<Mailbox::Batch> batch, std::vector<at::Tensor> tensors)
      : engine_(engine), name_(context), batch_(std::move(batch)), tensors_(std::move(tensors)) {}

  [[nodiscard]] Deadline deadline() const override { return name_.get().deadline; }
  void body() override {
    engine_.finish_exchange(name_.get(), batch_);
    tensors_.clear();
  }

 private:
  [[nodiscard]] bool ready() override {
    if (batch_->done()) return true;
    engine_.run(name_.get(), [&] { engine_.mailbox_.progress(); });
    return batch_->done() || engine_.mailbox_.is_over(batch_, deadline());
  }

  Engine& engine_;
  OwnedContext name_;
  std::shared_ptr<Mailbox::Batch> batch_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace troika::shm
