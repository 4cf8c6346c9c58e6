#include <fcntl.h>
#include <sys/resource.h>
#include <troika/base/error.h>
#include <troika/base/open_file_limit.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace troika {
namespace {

rlimit current_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
  return limit;
}

std::string shown(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

std::uint64_t count_one_by_one(rlim_t limit) {
  constexpr rlim_t kMost = 65536;
  std::uint64_t count = 0;
  for (rlim_t fd = 0; fd < std::min(limit, kMost); ++fd) {
    if (::fcntl(static_cast<int>(fd), F_GETFD) >= 0) ++count;
  }
  return count;
}

std::uint64_t count_open_files(rlim_t limit) {
  std::error_code error;
  std::uint64_t count = 0;
  std::filesystem::directory_iterator each("/proc/self/fd", error);
  if (error) return count_one_by_one(limit);
  for (const std::filesystem::directory_iterator end; !error && each != end;
       each.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

std::string open_file_hint() {
  return "the limit is " + shown(current_limit().rlim_cur) +
         " open files: raise it, as by `ulimit -n 4096` in the shell, LimitNOFILE= of a service or "
         "--ulimit nofile=4096 of a container";
}

void reserve_open_files(std::uint64_t needed, std::uint64_t wanted, std::string_view who) {
  rlimit limit = current_limit();
  const std::uint64_t open = count_open_files(limit.rlim_cur);
  if (open + wanted > limit.rlim_cur && limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = std::min<rlim_t>(open + wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  if (open + needed <= limit.rlim_cur) return;
  throw UsageError("too many open files: " + std::string(who) + " needs " +
                       std::to_string(open + needed) + ", and the limit is " +
                       shown(limit.rlim_cur),
                   open_file_hint());
}

void check_open_files(int error_number, std::string_view who) {
  if (error_number != EMFILE && error_number != ENFILE) return;
  throw UsageError(
      "too many open files: " + std::string(who) + " cannot open another" +
          (error_number == ENFILE ? ", nor can any process of this host" : ""),
      error_number == ENFILE ? "`sysctl fs.file-max` is the limit of the host" : open_file_hint());
}

}  // namespace troika
