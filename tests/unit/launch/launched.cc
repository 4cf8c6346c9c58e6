#include "launched.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <sstream>

namespace troika::testing {

struct Launched::Pipes {
  UniqueFd out_read, out_write, err_read, err_write;
  Pipes() {
    open(out_read, out_write);
    open(err_read, err_write);
  }
  static void open(UniqueFd& read, UniqueFd& write) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
  }
};

namespace {

constexpr Seconds kTimeout{60};

std::vector<std::string> command_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"/proc/self/exe", "launch"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string last_line_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line, last;
  while (std::getline(lines, line)) {
    if (!line.starts_with("  hint: ")) last = line;
  }
  return last;
}

std::vector<int> pids_in(const std::string& text) {
  std::vector<int> pids;
  for (std::size_t at = 0; (at = text.find("pid ", at)) != std::string::npos; ++at) {
    pids.push_back(std::stoi(text.substr(at + 4)));
  }
  return pids;
}

int count(const std::string& text, const std::string& what) {
  int times = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++times;
  return times;
}

// Whether anything may still come.
bool read_into(std::string& text, UniqueFd& from) {
  std::array<char, 4096> buffer;
  const ssize_t size = read(from.get(), buffer.data(), buffer.size());
  if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
  if (size <= 0) from.reset();
  return size > 0;
}

}  // namespace

Launched::Launched(const std::vector<std::string>& arguments) : Launched(arguments, Pipes()) {}

Launched::Launched(const std::vector<std::string>& arguments, Pipes pipes)
    : out_(std::move(pipes.out_read)),
      err_(std::move(pipes.err_read)),
      child_({command_of(arguments), {}, pipes.out_write.get(), pipes.err_write.get(), -1}) {}

bool Launched::read_some(const Deadline& deadline) {
  std::array<pollfd, 2> readable = {{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
  const int left = static_cast<int>(deadline.left().count() * 1e3);
  if (poll(readable.data(), readable.size(), left) <= 0) {
    ADD_FAILURE() << "the launcher has not ended; it printed\n" << out_text_ << err_text_;
    return false;
  }
  const int started = count(out_text_, "pid ");
  if (readable[0].revents) read_into(out_text_, out_);
  if (count(out_text_, "pid ") > started) all_started_ = Clock::now();
  if (readable[1].revents) read_into(err_text_, err_);
  return out_.valid() || err_.valid();
}

void Launched::wait_for(const std::string& text, int times) {
  const Deadline deadline = Deadline::in(kTimeout);
  while (count(out_text_ + err_text_, text) < times && read_some(deadline)) {
  }
}

Finished Launched::wait() {
  const Deadline deadline = Deadline::in(kTimeout);
  while (read_some(deadline)) {
  }
  if (deadline.passed()) child_.signal(SIGKILL);
  const int status = child_.reap();
  Finished finished;
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.seconds = Seconds(Clock::now() - all_started_).count();
  finished.out = out_text_;
  finished.err = err_text_;
  finished.pids = pids_in(out_text_);
  finished.last_line = last_line_of(err_text_);
  return finished;
}

Finished launched(const std::vector<std::string>& arguments) {
  return Launched(arguments).wait();
}

bool exists(int pid) {
  return kill(pid, 0) == 0;
}

WatchedProcess::WatchedProcess(int pid)
    : pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

bool WatchedProcess::ends_within(Seconds time) const {
  if (!pidfd_.valid()) return true;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, static_cast<int>(time.count() * 1e3)) > 0;
}

}  // namespace troika::testing
