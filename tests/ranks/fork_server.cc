#include "ranks/fork_server.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace troika::test {
namespace {

ForkServer* the_server = nullptr;

// "output", then "name=value" for each variable, each with a zero byte behind it.
constexpr std::size_t kLongestRequest = std::size_t{128} << 10;

void require(bool holds, const char* what) {
  if (!holds) throw std::system_error(errno, std::generic_category(), what);
}

// A forked process maps memory where its siblings do, unless something lies there.
void map_elsewhere() {
  constexpr std::size_t kPage = 4096, kPages = std::size_t{1} << 18;
  std::size_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) _exit(126);
  void* const kept = mmap(nullptr, (1 + random % kPages) * kPage, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (kept == MAP_FAILED) _exit(126);
}

void redirect(int from, const char* path, int flags) {
  const int opened = open(path, flags, 0600);
  if (opened < 0 || dup2(opened, from) < 0) _exit(126);
  if (opened != from) close(opened);
}

// In the new process, which its parent is about to leave to the test program.
void prepare(const std::vector<std::string>& request, pid_t program) {
  redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  redirect(STDOUT_FILENO, request[0].c_str(), O_WRONLY | O_CREAT | O_APPEND);
  if (dup2(STDOUT_FILENO, STDERR_FILENO) < 0) _exit(126);
  for (std::size_t i = 1; i < request.size(); ++i) {
    const std::size_t at = request[i].find('=');
    setenv(request[i].substr(0, at).c_str(), request[i].c_str() + at + 1, 1);
  }
  map_elsewhere();
  // What ends with its parent may be asked for only once that is the test program.
  const pid_t first = getppid();
  while (getppid() == first && first != program) sched_yield();  // its parent ends at once
  if (getppid() != program) _exit(126);
}

std::vector<std::string> parts_of(const std::vector<char>& bytes) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < bytes.size();) {
    parts.emplace_back(bytes.data() + begin);
    begin += parts.back().size() + 1;
  }
  return parts;
}

}  // namespace

ForkServer::ForkServer(int (*body)()) {
  int ends[2] = {-1, -1};
  require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  // Whom the server's child leaves behind is this program's.
  require(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
  const pid_t program = getpid();
  const pid_t server = fork();
  require(server >= 0, "fork");
  if (server == 0) {
    ours = UniqueFd();
    requests_ = std::move(theirs);
    serve(body, program);
  }
  requests_ = std::move(ours);
  the_server = this;
}

ForkServer::~ForkServer() {
  the_server = nullptr;
}

ForkServer& ForkServer::instance() {
  if (the_server == nullptr) throw std::logic_error("main() has made no ForkServer");
  return *the_server;
}

void ForkServer::serve(int (*body)(), pid_t program) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != program) _exit(0);
  std::vector<char> bytes(kLongestRequest);
  while (true) {
    const ssize_t size = recv(requests_.get(), bytes.data(), bytes.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) _exit(0);  // the test program has ended
    const std::vector<std::string> request = parts_of({bytes.begin(), bytes.begin() + size});
    // The parent of a new process ends, and leaves it to the test program.
    const pid_t parent = fork();
    if (parent == 0) {
      const pid_t child = fork();
      if (child == 0) {
        requests_ = UniqueFd();
        prepare(request, program);
        std::exit(body());
      }
      const bool told = send(requests_.get(), &child, sizeof(child), MSG_NOSIGNAL) > 0;
      _exit(told ? 0 : 1);
    }
    int status = 0;
    while (parent > 0 && waitpid(parent, &status, 0) < 0 && errno == EINTR) {
    }
    if (parent < 0) (void)send(requests_.get(), &parent, sizeof(parent), MSG_NOSIGNAL);
  }
}

pid_t ForkServer::start(const std::map<std::string, std::string>& variables,
                        const std::filesystem::path& output) {
  std::string request = output.string() + '\0';
  for (const auto& [name, value] : variables) request += name + "=" + value + '\0';
  if (request.size() > kLongestRequest) throw std::invalid_argument("too many variables");
  require(send(requests_.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0, "send");
  pid_t child = -1;
  ssize_t size = 0;
  do {
    size = recv(requests_.get(), &child, sizeof(child), 0);
  } while (size < 0 && errno == EINTR);
  require(size == sizeof(child) && child > 0, "fork");
  return child;
}

}  // namespace troika::test
