#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/data/loader.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

namespace troika {

class Loader::Worker {
 public:
  Worker(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        options_(options),
        wanted_step_(options.first_step),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}

  StepBatch next(Deadline deadline) {
    const Clock::time_point begin = Clock::now();
    std::unique_lock lock(mutex_);
    if (!ready_.wait_until(lock, deadline.at(), [this] { return !batches_.empty() || failure_; })) {
      throw DeadlineError("the data of step " + std::to_string(wanted_step_) +
                              " did not come within " + format_duration(deadline.timeout().count()),
                          "is the storage that holds the data slow or gone?");
    }
    // What was built before the failure still counts.
    if (batches_.empty()) std::rethrow_exception(failure_);
    StepBatch batch = std::move(batches_.front());
    batches_.pop_front();
    ++wanted_step_;
    lock.unlock();
    taken_.notify_one();
    batch.arrived.block_stream();
    for (const Microbatch& each : batch.microbatches) record_use(each);
    batch.waited_seconds = Seconds(Clock::now() - begin).count();
    return batch;
  }

 private:
  void run(const std::stop_token& stop) {
    try {
      const DeviceStream stream(options_.device);
      const DeviceStream::Scope beside(stream);
      for (std::int64_t step = options_.first_step; !stop.stop_requested(); ++step) {
        put(build(step, stop), stop);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      failure_ = std::current_exception();
    }
    ready_.notify_all();
  }

  StepBatch build(std::int64_t step, const std::stop_token& stop) const {
    StepBatch batch;
    batch.step = step;
    batch.first_ordinal =
        options_.first_ordinal + (step - options_.first_step) * options_.global_batch_size;
    batch.range = even_split(options_.global_batch_size, options_.data_rank, options_.data_ranks);
    batch.range.first += batch.first_ordinal;
    for (const IndexRange indices : microbatches_of(batch.range, options_.micro_batch_size)) {
      if (stop.stop_requested()) break;
      for (Microbatch& microbatch :
           build_microbatches(*dataset_, Split::kTrain, indices, options_.micro_batch_size, step)) {
        batch.valid += microbatch.valid;
        microbatch.index = static_cast<int>(batch.microbatches.size());  // in the step
        batch.microbatches.push_back(to_device(std::move(microbatch), options_.device));
      }
    }
    batch.arrived = DeviceEvent::record(options_.device);
    return batch;
  }

  void put(StepBatch batch, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const bool room = taken_.wait(lock, stop, [this] {
      return static_cast<std::int64_t>(batches_.size()) < options_.steps_ahead;
    });
    if (!room) return;
    batches_.push_back(std::move(batch));
    lock.unlock();
    ready_.notify_one();
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::condition_variable_any taken_;
  std::deque<StepBatch> batches_;
  std::exception_ptr failure_;
  std::int64_t wanted_step_;
  std::jthread thread_;  // last: it ends before what it uses
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options) {
  check(options.global_batch_size >= 1 && options.micro_batch_size >= 1 && options.steps_ahead >= 1,
        "a loader with nothing to load");
  worker_ = std::make_unique<Worker>(std::move(dataset), options);
}

Loader::~Loader() = default;

StepBatch Loader::next(Deadline deadline) {
  return worker_->next(deadline);
}

}  // namespace troika
