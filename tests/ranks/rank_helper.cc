// The parent's side: starts the ranks, waits for them, collects what they left.
#include "ranks/rank_helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <troika/base/file.h>
#include <troika/comm/mpi/library.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "ranks/fork_server.h"
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

Child watched(pid_t pid) {
  return {pid, UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
}

Child spawn(std::vector<std::string> command, const std::map<std::string, std::string>& variables,
            const std::filesystem::path& output) {
  std::vector<std::string> environment = environment_with(variables);
  const auto pointers_to = [](std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& each : texts) pointers.push_back(each.data());
    pointers.push_back(nullptr);
    return pointers;
  };
  const SpawnActions actions(output);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command[0].c_str(), actions.get(), nullptr,
                                 pointers_to(command).data(), pointers_to(environment).data());
  if (error != 0) throw std::system_error(error, std::generic_category(), "posix_spawn");
  return watched(pid);
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

// How the process ended.
RankResult reap(const Child& child, const Deadline& deadline) {
  RankResult result;
  result.timed_out = !ends_by(child, deadline);
  if (result.timed_out) kill(child.pid, SIGKILL);
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void add_files(RankResult& result, const std::filesystem::path& folder, int index) {
  result.output = text_of(output_path(folder, index));
  std::ifstream values(values_path(folder, index));
  for (std::string line; std::getline(values, line);) {
    const std::size_t at = line.find('=');
    result.values[line.substr(0, at)] = line.substr(at + 1);
  }
}

std::map<std::string, std::string> variables_for(const std::string& function, int size,
                                                 const RankOptions& options, const Store& store,
                                                 const std::filesystem::path& folder) {
  std::map<std::string, std::string> variables = {
      {kFunctionVariable, function},
      {kSizeVariable, std::to_string(size)},
      {kPortVariable, std::to_string(store.endpoint().port)},
      {kEngineVariable, options.engine},
      {kReductionOrderVariable, std::to_string(static_cast<int>(options.reduction_order))},
      {kPretendVariable, std::to_string(static_cast<int>(options.pretend))},
      {kFolderVariable, folder}};
  for (const auto& [name, value] : options.arguments) variables[kArgumentPrefix + name] = value;
  return variables;
}

std::vector<RankResult> run_under_mpirun(const std::string& mpirun, int size,
                                         std::map<std::string, std::string> variables,
                                         const std::filesystem::path& folder,
                                         const Deadline& deadline) {
  // Open MPI refuses to run as root, and more ranks than cores, unless told.
  variables["OMPI_ALLOW_RUN_AS_ROOT"] = variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1";
  variables["OMPI_MCA_hwloc_base_binding_policy"] = "none";  // a rank has several threads
  // Its jobs race for the folder that they share by default: one that ends removes it.
  variables["OMPI_MCA_orte_tmpdir_base"] = folder;
  const std::filesystem::path output = folder / "output-of-mpirun";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const Child child = spawn({mpirun, "-n", std::to_string(size), program}, variables, output);
  const RankResult job = reap(child, deadline);
  std::vector<RankResult> results;
  for (int index = 0; index < size; ++index) {
    RankResult result;
    add_files(result, folder, index);
    const std::string code = text_of(exit_code_path(folder, index));
    if (code.empty()) {
      result.signal = SIGKILL;
      result.timed_out = job.timed_out;
      result.output += text_of(output);
    } else {
      result.exit_code = std::stoi(code);
    }
    results.push_back(std::move(result));
  }
  return results;
}

bool is_installed(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace

std::vector<RankResult> run_ranks(const std::string& function, int size,
                                  const RankOptions& options) {
  const TemporaryFolder folder;
  const Store store = Store::host(0, Reach::kThisHost);
  const Deadline deadline = Deadline::in(options.deadline);
  auto variables = variables_for(function, size, options, store, folder.path());
  if (!options.mpirun.empty()) {
    return run_under_mpirun(options.mpirun, size, variables, folder.path(), deadline);
  }
  std::vector<Child> children;
  for (int index = 0; index < size; ++index) {
    variables[kRankVariable] = std::to_string(index);
    children.push_back(
        watched(ForkServer::instance().start(variables, output_path(folder.path(), index))));
  }
  std::vector<RankResult> results;
  for (int index = 0; index < size; ++index) {
    results.push_back(reap(children[static_cast<std::size_t>(index)], deadline));
    add_files(results.back(), folder.path(), index);
  }
  return results;
}

std::string RankResult::account() const {
  std::string how = "exit code " + std::to_string(exit_code);
  if (signal != 0) how = strsignal(signal);
  if (timed_out) how = "the deadline passed";
  return how + ":\n" + output;
}

std::vector<RankResult> expect_ranks(const std::string& function, int size,
                                     const RankOptions& options) {
  std::vector<RankResult> results = run_ranks(function, size, options);
  for (std::size_t index = 0; index < results.size(); ++index) {
    const RankResult& result = results[index];
    if (result.ok()) continue;
    ADD_FAILURE() << function << " on " << size << " ranks: rank " << index << " failed, "
                  << result.account();
  }
  return results;
}

std::vector<std::string> usable_engines() {
  std::vector<std::string> engines;
  for (const EngineFacts& each : list_engines()) {
    const bool other = !each.traits.exchanges() || !each.traits.carries_host_memory() ||
                       each.name == "mpi";  // needs mpirun
    if (each.usable && !other) engines.push_back(each.name);
  }
  return engines;
}

std::string engine_name(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

std::vector<TestedEngine> tested_engines() {
  std::vector<TestedEngine> engines;
  for (const std::string& name : usable_engines()) {
    engines.push_back({name, {.engine = name}});
    if (name != "shm") continue;
    engines.push_back({"hosts_in_turn", {.pretend = Pretend::kTwoHostsInTurn}, {4, 5, 9}});
    engines.push_back({"hosts_uneven", {.pretend = Pretend::kOneAloneAndTheRest}, {3, 4, 9}});
    engines.push_back({"three_hosts", {.pretend = Pretend::kThreeHostsInTurn}, {4, 5, 9}});
  }
  for (const mpi::Flavour& flavour : mpi::available_plugins()) {
    const std::string mpirun = "mpirun." + flavour;
    if (!is_installed(mpirun)) continue;
    engines.push_back({"mpi_" + flavour, {.engine = "mpi", .mpirun = mpirun}, {2, 3, 4, 9}});
    engines.push_back({"hosts_over_mpi_" + flavour,
                       {.pretend = Pretend::kTwoHostsInTurn, .mpirun = mpirun},
                       {4, 5, 9}});
  }
  return engines;
}

std::vector<TestedEngine> tested_mpi_engines() {
  std::vector<TestedEngine> engines = tested_engines();
  std::erase_if(engines, [](const TestedEngine& engine) { return engine.options.engine != "mpi"; });
  return engines;
}

}  // namespace troika::test
