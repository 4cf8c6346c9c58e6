#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <troika/base/process_limit.h>
#include <troika/launch/group_guardian.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace troika {
namespace {

// Ranks of one host, with those that are started again; a group beyond them is not watched.
constexpr std::size_t kMostGroups = 4096;

void send_number(int socket, pid_t number) {
  if (socket >= 0) (void)send(socket, &number, sizeof(number), MSG_NOSIGNAL);
}

// It would keep pipes of the launcher's output open, and its port. Before Linux 5.9 one by one.
void close_all_but(int socket) {
  const auto low = static_cast<unsigned>(socket);
#ifdef SYS_close_range
  const bool above = syscall(SYS_close_range, low + 1, ~0U, 0) == 0;
  const bool below = low == 0 || syscall(SYS_close_range, 0U, low - 1, 0) == 0;
  if (above && below) return;
#endif
  constexpr int kMost = 65536;
  for (int fd = 0; fd < kMost; ++fd) {
    if (fd != socket) close(fd);
  }
}

// The launcher may have had threads, so this makes system calls, and touches its own stack alone.
[[noreturn]] void guard(int socket) {
  setsid();  // a signal to the launcher's group, or its terminal's, is not for this process
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGQUIT}) {
    struct sigaction ignored = {};
    ignored.sa_handler = SIG_IGN;
    sigaction(number, &ignored, nullptr);
  }
  prctl(PR_SET_NAME, "troika-guardian");
  close_all_but(socket);
  std::array<pid_t, kMostGroups> groups{};
  std::size_t count = 0;
  for (pid_t told = 0;;) {
    const ssize_t size = recv(socket, &told, sizeof(told), MSG_WAITALL);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(told)) break;  // the launcher has ended
    if (told > 0 && count < kMostGroups) groups[count++] = told;
    for (std::size_t i = 0; told < 0 && i < count; ++i) {
      if (groups[i] == -told) groups[i--] = groups[--count];
    }
  }
  for (std::size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

GroupGuardian::GroupGuardian() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  // No handler of the launcher may run in the guardian.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Libraries have handlers of fork(), which may take locks that other threads held.
  pid_ = _Fork();
  if (pid_ == 0) guard(theirs.get());
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ > 0) return;
  socket_.reset();
  check_process_limit(error, "the launcher");
}

GroupGuardian::~GroupGuardian() {
  socket_.reset();
  if (pid_ <= 0) return;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void watch_group(int socket, pid_t group) {
  send_number(socket, group);
}

void forget_group(int socket, pid_t group) {
  send_number(socket, -group);
}

}  // namespace troika
