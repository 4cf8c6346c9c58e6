// Runs ahead of training: a background thread builds the microbatches of the next steps of one
// data-parallel rank while the current step computes.
#pragma once

#include <troika/base/time.h>
#include <troika/data/dataset.h>
#include <troika/device/device.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace troika {

// The work of one rank in one optimiser step.
struct StepBatch {
  std::int64_t step = 0;           // from 1
  std::int64_t first_ordinal = 0;  // samples that the run consumed before this step, over all ranks
  IndexRange range;                // this rank's samples, by ordinal
  std::vector<Microbatch> microbatches;  // in ascending order of sample ids
  std::int64_t valid = 0;                // targets that count, over the microbatches
  double waited_seconds = 0;             // how long next() waited for it
  DeviceEvent arrived = {};              // the copies to the device; next() makes its stream wait
};

struct LoaderOptions {
  std::int64_t first_step = 1;
  std::int64_t first_ordinal = 0;  // samples consumed before first_step
  std::int64_t global_batch_size = 1;
  std::int64_t micro_batch_size = 1;
  std::int64_t data_rank = 0;
  std::int64_t data_ranks = 1;
  std::int64_t steps_ahead = 2;  // how many steps may lie ready
  // The device of the microbatches. Copies to a device go on ahead, on a stream of their own.
  at::Device device = at::kCPU;
};

// Builds microbatches ahead on a background thread. Only the caller's thread may use it. The
// destructor stops the background thread, which ends within the time that one microbatch takes.
class Loader {
 public:
  // Starts to load. The data set may be shared with others.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next step's microbatches. Throws the error of building them (DataError), at the
  // step it belongs to and at every call after. Throws DeadlineError naming the step when it is not
  // ready in time.
  [[nodiscard]] StepBatch next(Deadline deadline);

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace troika
