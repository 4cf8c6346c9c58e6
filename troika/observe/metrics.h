// What a training step reports, and the interface of those who write it down. A sink is one file:
// jsonl_sink.h, tensorboard_sink.h, prometheus_sink.h.
#pragma once

#include <troika/observe/value_counts.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troika {

struct NamedValue {
  std::string name;  // snake_case, with the unit at the end: "memory_bytes"
  double value = 0;
};

// Counts of each value of a measurement in a step.
struct NamedCounts {
  std::string name;  // of the measurement: "staleness"
  std::string unit;  // of what is counted, one of them: "update"
  ValueCounts counts = {};
};

// The names of the most that tensors had in the memory of rank 0's device, and of the most that its
// allocator had taken of it. A run on the host has neither.
inline constexpr const char* kDevicePeakBytes = "device_peak_bytes";
inline constexpr const char* kDeviceReservedBytes = "device_reserved_bytes";

// The held-out split, measured with the parameters after the step's update.
struct Evaluation {
  double held_out_loss = 0;  // mean per valid token, in nats
  // Bits per byte of the text, so that tokenizers compare. Absent where there is no text.
  std::optional<double> held_out_bits_per_byte = {};
  // Values by the words of [train] metrics: "accuracy", "auc".
  std::vector<NamedValue> metrics = {};
};

// One optimiser step, over all ranks.
struct StepMetrics {
  std::int64_t step = 0;                 // from 1
  double loss = 0;                       // mean per valid token, before the update
  double grad_norm = 0;                  // before clipping
  double learning_rate = 0;              // of this step's update
  std::int64_t tokens = 0;               // trained on since the start of the run
  double tokens_per_second = 0;          // of this step
  double step_seconds = 0;               // all of the step
  double data_wait_seconds = 0;          // of these, the wait for the batch
  std::string skipped;                   // why there was no update; empty where there was one
  std::optional<Evaluation> evaluation;  // set where an evaluation followed the step
  // Other measurements: memory_bytes, cached_tensor_bytes, page_faults, device_peak_bytes,
  // device_reserved_bytes, cpu_utilisation, flops_per_second, mfu, loss_scale, outside_seconds.
  std::vector<NamedValue> extras;
  // Measurements that a step has many of: the staleness of its updates.
  std::vector<NamedCounts> counts;
};

// A receiver of metrics. Not thread-safe: one thread records.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  // Records a step. Call it once a step, in ascending order. Throws StorageError where the sink is
  // a file.
  virtual void record(const StepMetrics& metrics) = 0;
  // Returns when all that was recorded is on disk. Throws StorageError.
  virtual void flush() {}
};

}  // namespace troika
