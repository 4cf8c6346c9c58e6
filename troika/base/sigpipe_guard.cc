#include <troika/base/sigpipe_guard.h>

#include <ctime>

namespace troika {
namespace {

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

SigpipeGuard::SigpipeGuard() noexcept {
  const sigset_t set = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

SigpipeGuard::~SigpipeGuard() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  // One that has come meanwhile must not be delivered now. It was raised for this thread alone.
  const sigset_t set = only_sigpipe();
  const timespec at_once{};
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  if (sigismember(&pending, SIGPIPE) == 1) sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace troika
