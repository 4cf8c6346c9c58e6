// TensorBoard event files: scalars and histograms that `tensorboard --logdir RUN` shows. The format
// is fixed, and so small that a few lines write it.
//
// The file is a row of TFRecords; integers are little-endian:
//
//   uint64 length   uint32 masked_crc(length's 8 bytes)   length bytes   uint32 masked_crc(bytes)
//   masked_crc(x) = rotate_right(crc32c(x), 15) + 0xa282ead8, modulo 2^32
//
// Each record's bytes are one protobuf message Event. Of it we write:
//
//   field  1  double   wall_time, seconds since 1970    bytes 09, then 8 bytes
//   field  2  varint   step                             byte  10
//   field  3  string   file_version "brain.Event:2"     byte  1a, length   (first record only)
//   field  5  Summary  summary                          byte  2a, length   (steps)
//   field  7  SessionLog  session_log                   byte  3a, length   (a run that goes on)
//   SessionLog:    field 1  enum status: START = 1      byte  08
//   Summary:       field 1, repeated  Value value       byte  0a, length
//   Summary.Value: field 1  string    tag               byte  0a, length
//                  field 2  float     simple_value      byte  15, then 4 bytes
//                  field 5  HistogramProto  histo       byte  2a, length
//   HistogramProto:  field 1  double    min               byte  09, then 8 bytes
//                    field 2  double    max               byte  11, then 8 bytes
//                    field 3  double    num               byte  19, then 8 bytes
//                    field 4  double    sum               byte  21, then 8 bytes
//                    field 5  double    sum_squares       byte  29, then 8 bytes
//                    field 6  packed doubles bucket_limit byte  32, length, then 8 bytes each
//                    field 7  packed doubles bucket       byte  3a, length, then 8 bytes each
//
// A bucket holds what is above the limit before it and not above its own. A whole number k has the
// bucket from k - 1/2 to k + 1/2; between numbers that are further apart lies an empty one.
//
// A metric's tag is train/ and its key in metrics.jsonl; an evaluation's tags are held_out/loss and
// held_out/bits_per_byte. A measurement's counts are the histogram train/ and its key; a step that
// counted nothing has none.
#pragma once

#include <troika/observe/append_file.h>
#include <troika/observe/metrics.h>

#include <span>
#include <string>

namespace troika {

// Return the bytes of one TFRecord with an Event in it; `wall_time` is in seconds since 1970.
[[nodiscard]] std::string event_file_version(double wall_time);
// With it, readers forget what earlier files have of `step` and later ones.
[[nodiscard]] std::string event_session_start(double wall_time, std::int64_t step);
[[nodiscard]] std::string event_summary(double wall_time, std::int64_t step,
                                        std::span<const NamedValue> scalars,
                                        std::span<const NamedCounts> histograms = {});

class TensorBoardSink : public MetricSink {
 public:
  // Starts a new file events.out.tfevents.<seconds>.<host>.<pid>.<n> in `folder`, which is created
  // if it is missing. It goes on behind step `done` of the files before it. Throws StorageError.
  explicit TensorBoardSink(const std::filesystem::path& folder, std::int64_t done = 0);

  void record(const StepMetrics& metrics) override;
  void flush() override { file_.sync(); }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace troika
