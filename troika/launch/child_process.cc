#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/launch/child_process.h>

#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace troika {
namespace {

// What the child does before it runs the command.
class SpawnActions {
 public:
  explicit SpawnActions(const ChildSpec& spec) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files_, spec.standard_output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files_, spec.standard_error, STDERR_FILENO);
    if (spec.report >= 0) {
      posix_spawn_file_actions_adddup2(&files_, spec.report, kReportDescriptor);
    }
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }

  [[nodiscard]] const posix_spawn_file_actions_t* files() const { return &files_; }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

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

}  // namespace

ChildProcess::ChildProcess(const ChildSpec& spec) {
  check(!spec.command.empty(), "a rank has no command");
  std::vector<std::string> command = spec.command, entries = environment_with(spec.environment);
  const SpawnActions actions(spec);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command[0].c_str(), actions.files(), actions.attributes(),
                                 pointers_to(command).data(), pointers_to(entries).data());
  if (error != 0) {
    throw UsageError("cannot start " + quote(command[0]) + ": " + std::strerror(error));
  }
  pid_ = pid;
  running_ = true;
  pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {
    const std::string reason = std::strerror(errno);
    signal(SIGKILL);
    reap();
    throw UsageError("cannot watch a process: pidfd_open: " + reason,
                     "troika's launcher needs Linux 5.3 or later; start the ranks with torchrun, "
                     "mpirun or srun instead");
  }
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_),
      pidfd_(std::move(other.pidfd_)),
      running_(std::exchange(other.running_, false)) {}

ChildProcess::~ChildProcess() {
  if (!running_) return;
  signal(SIGKILL);
  reap();
}

void ChildProcess::signal(int number) const {
  if (running_) kill(-pid_, number);
}

int ChildProcess::reap() {
  // Until it is reaped its number cannot be anybody else's.
  siginfo_t ended{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  return status;
}

}  // namespace troika
