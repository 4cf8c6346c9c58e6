#include <troika/checkpoint/owner_mark.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/endpoint.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace troika {
namespace {

// The process's state and the time of its start, fields 3 and 22 of /proc/PID/stat; nothing where
// there is no such process. The name in field 2 may hold anything.
struct ProcessStat {
  std::string state, started;
};
std::optional<ProcessStat> stat_of(std::int64_t pid) {
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  constexpr int kAfterName = 3, kStarted = 22;
  ProcessStat stat;
  std::string field;
  for (int i = kAfterName; i <= kStarted && fields >> field; ++i) {
    if (i == kAfterName) stat.state = field;
    if (i == kStarted) stat.started = field;
  }
  return stat;
}

// Containers of one host may have the same numbers for other processes.
std::string own_processes() {
  std::error_code ignored;
  return host_identity() + " " +
         std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

}  // namespace

OwnerMark make_owner_mark() {
  OwnerMark mark;
  mark.pid = getpid();
  mark.holder = "process " + std::to_string(mark.pid) + " on host " + host_name();
  mark.processes = own_processes();
  if (const auto stat = stat_of(mark.pid)) mark.started = stat->started;
  return mark;
}

std::string format_mark(const OwnerMark& mark) {
  return mark.holder + "\n" + mark.processes + "\n" + std::to_string(mark.pid) + "\n" +
         mark.started + "\n" + std::to_string(mark.heartbeats) + "\n";
}

std::optional<OwnerMark> parse_mark(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  constexpr std::size_t kFields = 5;
  if (lines.size() != kFields) return std::nullopt;
  OwnerMark mark{lines[0], lines[1], 0, lines[3], 0};
  const auto read = [](const std::string& digits, std::int64_t& number) {
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, number);
    return error == std::errc() && rest == end;
  };
  if (!read(lines[2], mark.pid) || !read(lines[4], mark.heartbeats)) return std::nullopt;
  return mark;
}

bool is_of_one_process(const OwnerMark& a, const OwnerMark& b) {
  return a.processes == b.processes && a.pid == b.pid && a.started == b.started;
}

std::optional<bool> lives_here(const OwnerMark& mark) {
  if (mark.processes != own_processes()) return std::nullopt;
  const auto stat = stat_of(mark.pid);
  return stat && stat->started == mark.started && stat->state != "Z" && stat->state != "X";
}

}  // namespace troika
