#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/milliseconds.h>
#include <troika/base/process_limit.h>
#include <troika/base/text.h>
#include <troika/launch/child_process.h>
#include <troika/launch/group_guardian.h>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace troika {
namespace {

constexpr int kNotStarted = 127;

// `from` as `to`, which stays open in the command.
bool place(int from, int to) {
  return from == to ? fcntl(to, F_SETFD, 0) == 0 : dup2(from, to) >= 0;
}

// A set of cores as the kernel reads it.
class CoreMask {
 public:
  explicit CoreMask(const CoreList& cores) {
    if (cores.empty()) return;
    size_ = CPU_ALLOC_SIZE(static_cast<std::size_t>(cores.back()) + 1);
    bits_.resize(size_ / sizeof(unsigned long));
    for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), size_, mask());
  }
  // Binds the calling process. One that may not run there stays as it is: it only runs slower.
  void bind() {
    if (size_ > 0) sched_setaffinity(0, size_, mask());
  }

 private:
  [[nodiscard]] cpu_set_t* mask() { return reinterpret_cast<cpu_set_t*>(bits_.data()); }

  std::vector<unsigned long> bits_;
  std::size_t size_ = 0;
};

// What the child does before it runs the command. Until then it runs in our memory, while we stand
// still: it makes system calls, and touches nothing else. What goes wrong is written to `trouble`.
[[noreturn]] void become(const ChildSpec& spec, char* const* command, char* const* entries,
                         CoreMask& cores, pid_t launcher, int trouble) {
  // Whatever ends the launcher ends the rank. posix_spawn has nothing of the kind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(kNotStarted);
  setpgid(0, 0);
  watch_group(spec.guardian, getpid());  // before anything can be started that would outlive it
  cores.bind();
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const bool well = nothing >= 0 && place(nothing, STDIN_FILENO) &&
                    place(spec.standard_output, STDOUT_FILENO) &&
                    place(spec.standard_error, STDERR_FILENO) &&
                    (spec.report < 0 || place(spec.report, kReportDescriptor));
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &usual, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (well) execvpe(command[0], command, entries);
  const int error = errno;
  if (write(trouble, &error, sizeof(error)) < 0) _exit(kNotStarted + 1);
  _exit(kNotStarted);
}

// The child, or minus the error.
pid_t start(const ChildSpec& spec, char* const* command, char* const* entries) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -errno;
  const UniqueFd reader(ends[0]);
  UniqueFd low(ends[1]);
  // Out of the way of the report's; the command closes it as it starts.
  UniqueFd trouble(fcntl(low.get(), F_DUPFD_CLOEXEC, kReportDescriptor + 1));
  low.reset();
  if (!trouble.valid()) return -errno;
  CoreMask cores(spec.cores);
  const pid_t launcher = getpid();
  // No handler of ours may run in the child.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // posix_spawn, which clang-tidy would have, cannot tie the child to us.
  const pid_t pid = vfork();  // NOLINT(bugprone-unsafe-functions)
  if (pid == 0) become(spec, command, entries, cores, launcher, trouble.get());
  int error = errno;
  trouble.reset();
  const bool failed = pid < 0 || read(reader.get(), &error, sizeof(error)) > 0;
  if (failed && pid > 0) waitpid(pid, nullptr, 0);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed ? -error : pid;
}

// "NAME=VALUE" of this process, with the changes.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> entries;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) entries.emplace_back(text);
  }
  for (const auto& [name, value] : changes) entries.emplace_back(name).append("=").append(value);
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Leaves it to be reaped: until then its number cannot be anybody else's.
void wait_for_end(pid_t pid) {
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

}  // namespace

ChildProcess::ChildProcess(const ChildSpec& spec) {
  check(!spec.command.empty(), "a rank has no command");
  std::vector<std::string> command = spec.command, entries = environment_with(spec.environment);
  const std::vector<char*> words = pointers_to(command), variables = pointers_to(entries);
  const pid_t pid = start(spec, words.data(), variables.data());
  if (pid < 0) check_process_limit(-pid, "the launcher");
  if (pid < 0) throw UsageError("cannot start " + quote(command[0]) + ": " + std::strerror(-pid));
  pid_ = pid;
  guardian_ = spec.guardian;
  running_ = true;
  exit_fd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!exit_fd_.valid()) watch_by_thread();  // before Linux 5.3, or forbidden in a container
}

void ChildProcess::watch_by_thread() {
  exit_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!exit_fd_.valid()) {
    const std::string reason = std::strerror(errno);
    signal(SIGKILL);
    reap();
    throw UsageError("cannot watch a process: " + reason);
  }
  watcher_ = std::thread([pid = pid_, fd = exit_fd_.get()] {
    wait_for_end(pid);
    eventfd_write(fd, 1);
  });
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_),
      guardian_(other.guardian_),
      exit_fd_(std::move(other.exit_fd_)),
      watcher_(std::move(other.watcher_)),
      running_(std::exchange(other.running_, false)) {}

ChildProcess::~ChildProcess() {
  if (!running_) return;
  signal(SIGKILL);
  reap();
}

void ChildProcess::signal(int number) const {
  if (running_) kill(-pid_, number);
}

bool ChildProcess::stops_by(const Deadline& deadline) const {
  // The kernel tells nobody but a handler of SIGCHLD, which would be the whole program's.
  while (running_) {
    siginfo_t changed{};
    constexpr int kLook = WSTOPPED | WEXITED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, static_cast<id_t>(pid_), &changed, kLook) != 0 || changed.si_pid != 0) break;
    if (deadline.passed()) return false;
    poll(nullptr, 0, poll_milliseconds(failure_timing::kStopPoll));
  }
  return true;
}

int ChildProcess::reap() {
  wait_for_end(pid_);
  if (watcher_.joinable()) watcher_.join();
  kill(-pid_, SIGKILL);
  forget_group(guardian_, pid_);  // before the number can be another's
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  return status;
}

}  // namespace troika
