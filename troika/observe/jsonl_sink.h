// metrics.jsonl: a JSON object a line, a line a step, so that a run can be read with any tool while
// it goes on.
//
// Keys come in this order: step, loss, grad_norm, learning_rate, tokens, tokens_per_second,
// step_seconds, data_wait_seconds; then held_out_loss and, of text, held_out_bits_per_byte on steps
// that were followed by an evaluation; then the extras in the order given; then each of the
// counts, an object of integers by value: {"0": 3, "2": 1}. `step` and `tokens` are integers.
// All others are written with up to 17 significant digits, which is enough to read back the same
// bits, and always with a point or an exponent. A value that is not finite is null: JSON has no
// NaN.
#pragma once

#include <troika/observe/append_file.h>
#include <troika/observe/metrics.h>

namespace troika {

// Returns one line, with its newline.
[[nodiscard]] std::string to_json_line(const StepMetrics& metrics);

// Cuts off the lines of steps behind `step`, and what follows the last complete line. Does nothing
// where there is no such file. Throws StorageError.
void cut_behind_step(const std::filesystem::path& path, std::int64_t step);

// Returns the last complete line, without its newline, and its step; nothing, and 0, where there is
// no such file or line.
[[nodiscard]] std::string last_line_of(const std::filesystem::path& path);
[[nodiscard]] std::int64_t last_step_of(const std::filesystem::path& path);

class JsonlSink : public MetricSink {
 public:
  // kKeepLines goes on with a file, and cuts off a last line that was not completed. Throws
  // StorageError.
  explicit JsonlSink(std::filesystem::path path,
                     AppendFile::Mode mode = AppendFile::Mode::kTruncate)
      : file_(std::move(path), mode) {}

  void record(const StepMetrics& metrics) override { file_.append(to_json_line(metrics)); }
  void flush() override { file_.sync(); }

 private:
  AppendFile file_;
};

}  // namespace troika
