// Writing to a connection whose peer has died raises SIGPIPE, which ends a program that has not
// asked for anything else. A library may neither let that happen nor change it for its user.
#pragma once

#include <csignal>

namespace troika {

// While it lives, such a write of this thread, or of one that it starts meanwhile, only fails with
// EPIPE. Meant for calls into libraries that leave SIGPIPE to their caller.
class SigpipeGuard {
 public:
  SigpipeGuard() noexcept;
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t before_;  // what was blocked
};

}  // namespace troika
