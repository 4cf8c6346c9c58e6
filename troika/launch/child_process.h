// One child process: started in a process group of its own, watched through a descriptor, and never
// left behind: it is killed when the thread that has started it ends, whatever ends it. What it has
// started in its group is killed as well, by a guardian where the launcher cannot.
#pragma once

#include <troika/base/file.h>
#include <troika/base/time.h>
#include <troika/launch/cores.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

namespace troika {

struct ChildSpec {
  std::vector<std::string> command;                // command[0] is looked up in PATH
  std::map<std::string, std::string> environment;  // on top of this process's
  int standard_output = 1;                         // descriptors of this process
  int standard_error = 2;
  int report = -1;      // becomes descriptor kReportDescriptor of the child
  CoreList cores = {};  // that it is bound to; none: those of this process
  int guardian = -1;    // the socket of a GroupGuardian that outlives the ChildProcess; -1: none
};

inline constexpr int kReportDescriptor = 3;

class ChildProcess {
 public:
  // Starts the process. Standard input is empty; signals are as a fresh process has them. Throws
  // UsageError naming the command when it cannot be started.
  explicit ChildProcess(const ChildSpec& spec);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  // Kills the process group if the process is still there, and reaps it.
  ~ChildProcess();

  [[nodiscard]] int pid() const { return pid_; }
  // Returns a descriptor that is readable once the process has ended.
  [[nodiscard]] int descriptor() const { return exit_fd_.get(); }
  [[nodiscard]] bool running() const { return running_; }
  // Sends a signal to the whole process group.
  void signal(int number) const;
  // Waits until it is stopped or has ended; false when the deadline passes first.
  [[nodiscard]] bool stops_by(const Deadline& deadline) const;
  // Waits until the process has ended, kills what is left of its group, and returns its status as
  // waitpid does.
  int reap();

 private:
  int pid_ = -1;
  int guardian_ = -1;
  void watch_by_thread();

  UniqueFd exit_fd_;
  std::thread watcher_;  // where the kernel gives no descriptor of a process
  bool running_ = false;
};

}  // namespace troika
