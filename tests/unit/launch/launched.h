// A launcher under test, as a process of its own, with what it printed.
#pragma once

#include <troika/launch/child_process.h>
#include <troika/launch/output.h>

#include <string>
#include <vector>

namespace troika::testing {

struct Finished {
  int exit_code = 0;  // 128 + signal when it was killed
  std::string out, err;
  double seconds = 0;     // since the last rank has said that it is there
  std::vector<int> pids;  // that ranks have printed
  std::string last_line;  // on stderr, without hints
};

class Launched {
 public:
  // `arguments` as of play_launcher.
  explicit Launched(const std::vector<std::string>& arguments);

  [[nodiscard]] int pid() const { return child_.pid(); }
  void signal(int number) const { child_.signal(number); }
  // Reads its output until `text` has come `times` times. Fails the test after a minute.
  void wait_for(const std::string& text, int times);
  // Waits until the program has ended and no process holds its output any more. Fails the test
  // after a minute.
  [[nodiscard]] Finished wait();

 private:
  struct Pipes;
  Launched(const std::vector<std::string>& arguments, Pipes pipes);
  bool read_some(const Deadline& deadline);

  Clock::time_point all_started_ = Clock::now();
  UniqueFd out_, err_;
  ChildProcess child_;
  std::string out_text_, err_text_;
};

// Runs a launcher to its end.
[[nodiscard]] Finished launched(const std::vector<std::string>& arguments);

// Returns whether a process of that number is there; zombies count.
[[nodiscard]] bool exists(int pid);

// A process that is to end on its own.
class WatchedProcess {
 public:
  explicit WatchedProcess(int pid);
  [[nodiscard]] bool ends_within(Seconds time) const;

 private:
  UniqueFd pidfd_;
};

}  // namespace troika::testing
