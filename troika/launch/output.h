// The output of the ranks on its way to the launcher's: whole lines, never mixed, with the rank's
// number in front of all but rank 0's.
#pragma once

#include <troika/base/file.h>
#include <troika/base/time.h>

#include <string>
#include <string_view>

namespace troika {

// One of the launcher's own outputs. Its reader may be slow, so writes wait for the event loop to
// report that there is room.
class OutputSink {
 public:
  explicit OutputSink(int descriptor);

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // Returns whether the output is a terminal. It shows rank 0's progress line, which another rank's
  // line first has to clear.
  [[nodiscard]] bool is_terminal() const { return terminal_; }
  void push(std::string_view text);
  // Wipes the progress line that rank 0 has left on a terminal which can do that.
  void clear_line();
  // Ends a line that a rank has left open here.
  void begin_line();
  [[nodiscard]] bool has_pending() const { return !pending_.empty(); }
  // Returns whether nothing more should be read for this output until some is written.
  [[nodiscard]] bool is_full() const { return pending_.size() > (1U << 20); }
  // Writes what fits without waiting; the descriptor must be writable. When the output has no
  // reader any more, the rest is dropped.
  void write_some();
  // Writes everything, or what can be written by the deadline.
  void flush(const Deadline& deadline);

 private:
  int descriptor_;
  bool terminal_;
  bool can_redraw_;
  bool in_line_ = false;
  std::string pending_;
};

// Carries one stream of one rank to a sink.
class LineRelay {
 public:
  LineRelay(UniqueFd from, OutputSink& to, std::string prefix);

  [[nodiscard]] int descriptor() const { return from_.get(); }
  [[nodiscard]] bool open() const { return from_.valid(); }
  [[nodiscard]] OutputSink& sink() const { return *to_; }
  // Returns whether the rank has written anything to it.
  [[nodiscard]] bool has_anything() const;
  // Reads what is there, and forwards the lines that are complete. The last one is forwarded as it
  // is when the stream ends.
  void read_some();
  // Reads everything that is there already, and ends.
  void finish();

 private:
  void forward(std::string_view line);
  void end();

  UniqueFd from_;
  OutputSink* to_;
  std::string prefix_;
  std::string partial_;
  bool has_read_ = false;
};

}  // namespace troika
