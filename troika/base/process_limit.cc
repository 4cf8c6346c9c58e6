#include <sys/resource.h>
#include <troika/base/cgroup_folders.h>
#include <troika/base/process_limit.h>

#include <cerrno>
#include <fstream>

namespace troika {
namespace {

// Nothing where the file is missing, or says "max".
std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<ProcessLimit> process_limit(const std::filesystem::path& root) {
  std::optional<ProcessLimit> nearest;
  visit_cgroup_folders(root, [&](const std::filesystem::path& folder, std::string_view controller) {
    if (!controller.empty() && controller != "pids") return;
    const auto most = number_in(folder / "pids.max"), running = number_in(folder / "pids.current");
    if (!most || !running) return;
    const auto left = [](const ProcessLimit& limit) {
      return limit.most > limit.running ? limit.most - limit.running : 0;
    };
    const ProcessLimit found{*most, *running};
    if (!nearest || left(found) < left(*nearest)) nearest = found;
  });
  return nearest;
}

std::string process_limit_hint(const std::filesystem::path& root) {
  std::string hint;
  if (const auto limit = process_limit(root)) {
    hint = "the control group may have " + std::to_string(limit->most) +
           " processes and threads (pids.max): raise it, as by --pids-limit of a container, "
           "TasksMax= of a service or podPidsLimit of Kubernetes";
  }
  rlimit of_user{};
  if (::getrlimit(RLIMIT_NPROC, &of_user) == 0 && of_user.rlim_cur != RLIM_INFINITY) {
    hint += (hint.empty() ? "the" : "; the") + std::string(" limit of the user is ") +
            std::to_string(of_user.rlim_cur) + " (`ulimit -u`)";
  }
  if (hint.empty()) hint = "`ulimit -u` and pids.max of the control group are the usual limits";
  return hint + "; fewer ranks, and OMP_NUM_THREADS=1, need fewer";
}

std::string too_many_processes(std::string_view who) {
  return "too many processes and threads: " + std::string(who) + " cannot start another";
}

void check_process_limit(int error_number, std::string_view who) {
  if (error_number != EAGAIN) return;
  throw UsageError(too_many_processes(who), process_limit_hint());
}

}  // namespace troika
