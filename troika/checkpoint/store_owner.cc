#include <poll.h>
#include <troika/base/error.h>
#include <troika/base/milliseconds.h>
#include <troika/base/units.h>
#include <troika/checkpoint/store_owner.h>
#include <troika/observe/log.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/endpoint.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

namespace troika {
namespace {

constexpr std::uint64_t kLongestMark = 4096;
constexpr Seconds kLook{1};  // between two looks at another run's mark

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

StoreOwner::StoreOwner(const ObjectStore& store, std::string hint, Seconds patience)
    : store_(store), hint_(std::move(hint)), mark_(make_owner_mark()) {
  if (const auto found = read()) wait_for_other(*found, patience);
  store_.write(kOwnerMark, format_mark(mark_));
  check();  // of two that begin at once the one that wrote last stays
  thread_ = std::jthread([this](const std::stop_token& stop) { send_heartbeats(stop); });
}

// What a run of another host does shows in its mark alone.
void StoreOwner::wait_for_other(const std::string& found, Seconds patience) const {
  const std::optional<OwnerMark> other = parse_mark(found);
  if (other && is_of_one_process(*other, mark_)) return;
  const std::string holder = other ? other->holder : "another run";
  const auto refuse = [&] {
    throw UsageError(shown_place(store_.place()) + " is being written by " + holder, hint_);
  };
  const std::optional<bool> lives = other ? lives_here(*other) : std::nullopt;
  if (lives == true) refuse();
  if (lives == false) return;
  log_info(shown_place(store_.place()) + " was last written by " + holder + ": waiting " +
           format_fixed(patience.count(), 0) + " s at most, to see whether it still is");
  for (const Deadline deadline = Deadline::in(patience); !deadline.passed();) {
    poll(nullptr, 0, poll_milliseconds(std::min(kLook, deadline.left())));
    const auto now = read();
    if (!now) return;
    // Compared as a whole, and no clock is read: those of two hosts may differ by more than the
    // patience.
    if (*now != found) refuse();
  }
}

StoreOwner::~StoreOwner() {
  thread_.request_stop();
  // Before the mark is removed: a heartbeat under way would write it again, and the next run would
  // wait for a process that has ended.
  if (thread_.joinable()) thread_.join();
  try {
    const auto found = read();
    // Another run may have taken the place meanwhile: its mark stays.
    if (found && is_ours(*found)) store_.remove(kOwnerMark);
    // The next run waits for a sign of this one, and gets none.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const Error&) {
  }
}

std::optional<std::string> StoreOwner::read() const {
  const std::string folder(kOwnerMark, std::string_view(kOwnerMark).find('/'));
  for (const ObjectStore::File& file : store_.list(folder)) {
    if (file.name == kOwnerMark) return store_.read(kOwnerMark, kLongestMark);
  }
  return std::nullopt;
}

bool StoreOwner::is_ours(const std::string& text) const {
  const auto found = parse_mark(text);
  return found && is_of_one_process(*found, mark_);
}

// A mark that is gone was removed by hand, or as an old file of its bucket.
void StoreOwner::check() const {
  const auto text = read();
  if (!text || is_ours(*text)) return;
  const auto found = parse_mark(*text);
  throw StorageError(shown_place(store_.place()) + " is being written by " +
                         (found ? found->holder : "another run"),
                     hint_);
}

void StoreOwner::send_heartbeats(const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any stopped;
  OwnerMark mark = mark_;
  while (!stopped.wait_for(lock, stop, kHeartbeatInterval, [&] { return stop.stop_requested(); })) {
    try {
      const auto found = read();
      if (found && !is_ours(*found)) continue;  // check() says so
      ++mark.heartbeats;
      store_.write(kOwnerMark, format_mark(mark));
      // A store that does not answer now may do so next time. NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const Error&) {
    }
  }
}

}  // namespace troika
