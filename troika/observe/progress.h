// What a person sees while something runs: on a terminal one line that is drawn again and again,
// elsewhere (a file, a pipe, a batch system's log) a plain line now and then, and nothing at all
// when the output is meant for machines.
#pragma once

#include <troika/base/time.h>
#include <troika/observe/metrics.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troika {

enum class ProgressStyle {
  kTerminal,  // one line, drawn again in place
  kLines,     // the first, the last, and at most one each `line_interval`
  kSilent,
};

// Returns kTerminal if `fd` is a terminal that can draw a line again (TERM is neither unset nor
// "dumb").
[[nodiscard]] ProgressStyle progress_style(int fd);
// Returns the columns of the terminal `fd`; 80 if it is none or does not say.
[[nodiscard]] int terminal_width(int fd);

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::kLines;
  Seconds redraw_interval{0.1};
  Seconds line_interval{10};
  // The columns to fill, asked at each drawing, so that a terminal may change its size.
  std::function<int()> width = [] { return 80; };
  std::function<Clock::time_point()> now = Clock::now;
};

// Returns the options that fit the output `fd`.
[[nodiscard]] ProgressOptions progress_options(int fd);

// Draws a line of fields, each time another text, as the style wants it. Not thread-safe.
class ProgressLine {
 public:
  // Requires that `output` outlives this.
  ProgressLine(std::ostream& output, ProgressOptions options);
  // Leaves the cursor on a line of its own, whatever happened.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  [[nodiscard]] Clock::time_point now() const { return options_.now(); }
  [[nodiscard]] const ProgressOptions& options() const { return options_; }
  // Returns whether it is time to draw. Ask before building the fields.
  [[nodiscard]] bool due() const;
  // Draws `fields`, two blanks between them. On a terminal those that do not fit are left out, the
  // last first, and the first is cut.
  void draw(const std::vector<std::string>& fields);
  // Ends a line that is being drawn in place. The next drawing starts a new one.
  void end_line();

 private:
  std::ostream& output_;
  ProgressOptions options_;
  std::optional<Clock::time_point> drawn_at_;
  bool open_ = false;  // the cursor is on our line
};

// Training: "step 120/200  loss 1.2345  52.3 k tokens/s  1 min 05 s left  held-out 2.10 bits/byte";
// where the data are no text, "held-out loss 1.2345". Not thread-safe.
class StepProgress {
 public:
  // Takes the unit that the model counts: "tokens", "samples".
  StepProgress(std::ostream& output, std::int64_t total_steps, std::string unit,
               ProgressOptions options);

  void update(const StepMetrics& metrics);
  // Draws the last step, if it is not on display yet, and ends the line. Without it (an error), the
  // line stays as it was last drawn.
  void finish();

 private:
  void draw();

  ProgressLine line_;
  std::int64_t total_;
  std::string unit_;
  std::optional<StepMetrics> last_;
  std::optional<Evaluation> evaluation_;
  // The first step seen, which is slower than the others and so left out of the estimate.
  std::int64_t first_step_ = 0;
  Clock::time_point first_at_;
  bool shown_ = false;
};

// Counting: "tokenising [=======>      ]  45 %  1.2 M/2.7 M documents  120.3 k documents/s  12.3 s
// left". Thread-safe.
class CountProgress {
 public:
  // "tokenising" `total` "documents". A total of 0 is unknown: no bar, no time left.
  CountProgress(std::ostream& output, std::string what, std::string unit, std::int64_t total,
                ProgressOptions options);

  void add(std::int64_t count);
  // Draws the last count and ends the line, as StepProgress::finish does.
  void finish();

 private:
  void draw();
  [[nodiscard]] std::string bar() const;

  std::mutex mutex_;
  ProgressLine line_;
  std::string what_;
  std::string unit_;
  std::int64_t total_;
  std::int64_t count_ = 0;
  std::int64_t shown_ = -1;
  Clock::time_point start_;
};

}  // namespace troika
