// The parent's side: starts the ranks, waits for them, collects what they left.
#include "ranks/rank_helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <troika/base/file.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <system_error>

#include "ranks/rank_files.h"
#include "support/temporary_folder.h"

namespace troika::test {
namespace {

struct Child {
  pid_t pid = -1;
  UniqueFd alive;  // becomes readable when the process ends
};

class SpawnActions {
 public:
  explicit SpawnActions(const std::filesystem::path& output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, output.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

std::vector<std::string> environment_with(const std::map<std::string, std::string>& additions) {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  for (const auto& [name, value] : additions) variables.push_back(name + "=" + value);
  return variables;
}

Child spawn(const std::map<std::string, std::string>& variables,
            const std::filesystem::path& output) {
  std::vector<std::string> environment = environment_with(variables);
  std::vector<char*> pointers;
  for (std::string& each : environment) pointers.push_back(each.data());
  pointers.push_back(nullptr);
  std::string program = "/proc/self/exe";
  char* const arguments[] = {program.data(), nullptr};
  const SpawnActions actions(output);
  Child child;
  const int error =
      posix_spawn(&child.pid, program.c_str(), actions.get(), nullptr, arguments, pointers.data());
  if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  child.alive = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0)));
  return child;
}

// Whether the child ended before the deadline.
bool ends_by(const Child& child, const Deadline& deadline) {
  pollfd watched{child.alive.get(), POLLIN, 0};
  while (true) {
    const auto left = static_cast<int>(std::ceil(deadline.left().count() * 1e3));
    const int ready = poll(&watched, 1, left);
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
  }
}

RankResult collect(const Child& child, const Deadline& deadline,
                   const std::filesystem::path& folder, int index) {
  RankResult result;
  result.timed_out = !ends_by(child, deadline);
  if (result.timed_out) kill(child.pid, SIGKILL);
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  std::ostringstream output;
  output << std::ifstream(output_path(folder, index)).rdbuf();
  result.output = output.str();
  std::ifstream values(values_path(folder, index));
  for (std::string line; std::getline(values, line);) {
    const std::size_t at = line.find('=');
    result.values[line.substr(0, at)] = line.substr(at + 1);
  }
  return result;
}

}  // namespace

std::vector<RankResult> run_ranks(const std::string& function, int size,
                                  const RankOptions& options) {
  const TemporaryFolder folder;
  const Store store = Store::host(0, Reach::kThisHost);
  const Deadline deadline = Deadline::in(options.deadline);
  std::map<std::string, std::string> variables = {
      {kFunctionVariable, function},
      {kSizeVariable, std::to_string(size)},
      {kPortVariable, std::to_string(store.endpoint().port)},
      {kEngineVariable, std::to_string(static_cast<int>(options.engine))},
      {kFolderVariable, folder.path()}};
  for (const auto& [name, value] : options.arguments) variables[kArgumentPrefix + name] = value;

  std::vector<Child> children;
  for (int index = 0; index < size; ++index) {
    variables[kRankVariable] = std::to_string(index);
    children.push_back(spawn(variables, output_path(folder.path(), index)));
  }
  std::vector<RankResult> results;
  for (int index = 0; index < size; ++index) {
    results.push_back(
        collect(children[static_cast<std::size_t>(index)], deadline, folder.path(), index));
  }
  return results;
}

std::vector<RankResult> expect_ranks(const std::string& function, int size,
                                     const RankOptions& options) {
  std::vector<RankResult> results = run_ranks(function, size, options);
  for (std::size_t index = 0; index < results.size(); ++index) {
    const RankResult& result = results[index];
    if (result.ok()) continue;
    std::string how = "exit code " + std::to_string(result.exit_code);
    if (result.signal != 0) how = strsignal(result.signal);
    if (result.timed_out) how = "the deadline passed";
    ADD_FAILURE() << function << " on " << size << " ranks: rank " << index << " failed (" << how
                  << "):\n"
                  << result.output;
  }
  return results;
}

std::vector<EngineKind> usable_engines() {
  std::vector<EngineKind> engines;
  for (const EngineFacts& each : list_engines()) {
    if (each.usable && each.kind != EngineKind::kFake) engines.push_back(each.kind);
  }
  return engines;
}

std::string engine_name(const testing::TestParamInfo<EngineKind>& info) {
  for (const EngineFacts& each : list_engines()) {
    if (each.kind == info.param) return each.name;
  }
  return "unknown";
}

}  // namespace troika::test
