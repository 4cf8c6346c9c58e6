#include "chaos/watched_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

namespace troika::chaos {
namespace {

struct OpenFile {
  std::string path;
  std::uint64_t number = 0;
  bool is_folder = false;
  bool is_written = false;
  bool is_manifest = false;
  std::uint64_t end = 0;  // where write() goes on
};

class Layer {
 public:
  std::recursive_mutex mutex;
  Record* record = nullptr;
  Plan plan;
  std::string root, graves, done;
  int rank = 0;
  int report = -1;
  std::map<int, OpenFile> files;
  // What fsync of a folder, and the next calls, belong to.
  enum class Last { kOther, kManifest, kRemoval } last = Last::kOther;

  [[nodiscard]] bool watches(const std::string& path) const {
    return record != nullptr && !is_inside && path.starts_with(root) &&
           (path.size() == root.size() || path[root.size()] == '/');
  }
  bool is_inside = false;  // its own calls
  bool skips_syncs = false;
};

Layer& layer() {
  static Layer* const only = new Layer;  // outlives what runs at exit
  return *only;
}

using Lock = std::lock_guard<std::recursive_mutex>;

std::uint64_t number_of(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

[[noreturn]] void die(bool with_job) {
  if (with_job) ::kill(::getppid(), SIGKILL);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

bool is_of_checkpoints(const std::string& path) {
  return path.find("/checkpoints") != std::string::npos;
}

Phase phase_of(Phase phase, const std::string& path) {
  return phase == Phase::kCopy || is_of_checkpoints(path) ? phase : Phase::kRun;
}

void set_last(Layer::Last last, const std::string& path) {
  if (is_of_checkpoints(path)) layer().last = last;
}

// One call on a file below the root, from its count to its record.
class Call {
 public:
  Call(Kind kind, Phase phase, std::string path)
      : kind_(kind), phase_(phase_of(phase, path)), path_(std::move(path)) {
    Record& record = *layer().record;
    number_ = record.counts[static_cast<int>(phase_)]++;
    const Plan& plan = layer().plan;
    const bool is_here = plan.phase == phase_ && plan.number == number_;
    if (plan.action == Action::kNone) return;
    if (is_here && plan.action != Action::kFail) {
      is_last_ = true;
      mark();
    }
    const bool failing = record.carried_out && (plan.kinds & bit(kind)) != 0 &&
                         (plan.phase == Phase::kRun) == (phase_ == Phase::kRun);
    if (plan.action == Action::kFail && (is_here || failing)) {
      fails_ = true;
      mark();
    }
  }

  // Returns whether the call is to fail, with errno set. Ends the process here where that is
  // planned for before the call.
  bool fails() {
    const Plan& plan = layer().plan;
    if (is_last_ && plan.action == Action::kDelete) delete_folder();
    if (is_last_ && kills() && kind_ != Kind::kWrite && plan.share < 0.5) die_now();
    if (!fails_) return false;
    if (kind_ == Kind::kSync) note(Kind::kSyncFailed);
    report(Kind::kSyncFailed);
    errno = plan.error;
    return true;
  }

  // Of a write: how many bytes of it are written, at least one.
  [[nodiscard]] std::size_t allowed(std::size_t count) const {
    const Plan& plan = layer().plan;
    if (!is_last_ || !kills() || count == 0)
      return std::min<std::size_t>(count, plan.longest_write);
    const double share = plan.share * static_cast<double>(count);
    return std::max<std::size_t>(1, static_cast<std::size_t>(share));
  }

  // Of a call that has been made.
  void made(std::uint64_t file = 0, const std::string& to = "", std::uint64_t begin = 0,
            std::uint64_t count = 0) {
    file_ = file;
    to_ = to;
    begin_ = begin;
    count_ = count;
    const int error = errno;
    note(kind_);
    report(kind_);
    if (is_last_ && kills()) die_now();
    errno = error;
  }

 private:
  [[nodiscard]] static bool kills() {
    return layer().plan.action == Action::kKill || layer().plan.action == Action::kKillJob;
  }
  [[noreturn]] static void die_now() { die(layer().plan.action == Action::kKillJob); }

  static void mark() {
    Layer& own = layer();
    own.record->carried_out = true;
    if (own.done.empty()) return;
    const int made = ::creat(own.done.c_str(), 0600);
    if (made >= 0) ::close(made);
  }

  void delete_folder() const {
    Layer& own = layer();
    own.is_inside = true;
    std::error_code ignored;
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path(), ignored);
    own.is_inside = false;
  }

  void note(Kind kind) const {
    Record& record = *layer().record;
    if (layer().graves.empty()) return;
    if (record.operations_count == Record::kMost) std::abort();
    Operation& entry = record.operations[record.operations_count++];
    entry = {kind, phase_, file_, begin_, count_, {}, {}};
    if (path_.size() >= sizeof(entry.path) || to_.size() >= sizeof(entry.to)) std::abort();
    path_.copy(entry.path, path_.size());
    to_.copy(entry.to, to_.size());
    if (kind == Kind::kSyncFailed) entry.file = number_of(path_);
  }

  void report(Kind kind) const {
    if (layer().report < 0) return;
    const std::string line = std::to_string(layer().rank) + " " + name_of(phase_) + " " +
                             std::to_string(number_) + " " +
                             std::to_string(static_cast<int>(kind)) + " " + std::to_string(count_) +
                             " " + (to_.empty() ? path_ : to_) + "\n";
    static auto* const write_now = next(&::write, "write");
    [[maybe_unused]] const ssize_t written = write_now(layer().report, line.data(), line.size());
  }

  Kind kind_;
  Phase phase_;
  std::string path_, to_;
  int number_ = 0;
  bool is_last_ = false;
  bool fails_ = false;
  std::uint64_t file_ = 0, begin_ = 0, count_ = 0;
};

Phase phase_of_folder() {
  if (layer().last == Layer::Last::kManifest) return Phase::kCommit;
  return layer().last == Layer::Last::kRemoval ? Phase::kCleanUp : Phase::kFsync;
}

OpenFile* find(int fd) {
  const auto found = layer().files.find(fd);
  return found == layer().files.end() ? nullptr : &found->second;
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Phase phase_named(const std::string& name) {
  for (int phase = 0; phase < kPhases; ++phase) {
    if (name == name_of(static_cast<Phase>(phase))) return static_cast<Phase>(phase);
  }
  std::abort();
}

Action action_named(const std::string& name) {
  if (name == "kill") return Action::kKill;
  if (name == "kill-job") return Action::kKillJob;
  return name == "delete" ? Action::kDelete : Action::kFail;
}

// A process that is started with this library in LD_PRELOAD. Those that are no rank pass.
[[gnu::constructor]] void begin_in_environment() {
  static Record record;
  const std::string rank = variable("RANK");
  if (*variable("TROIKA_CHAOS_ROOT") == '\0' || rank.empty()) return;
  Layer& own = layer();
  own.rank = static_cast<int>(std::strtol(rank.c_str(), nullptr, 10));
  own.root = variable("TROIKA_CHAOS_ROOT");
  own.done = variable("TROIKA_CHAOS_DONE");
  if (const char* const report = variable("TROIKA_CHAOS_REPORT"); *report != '\0') {
    own.report = ::open(report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }
  std::istringstream words(variable("TROIKA_CHAOS_PLAN"));
  int planned = 0;
  std::string phase, action;
  if (words >> planned >> phase >> own.plan.number >> action >> own.plan.share &&
      planned == own.rank && !is_there(own.done)) {
    own.plan.phase = phase_named(phase);
    own.plan.action = action_named(action);
    own.plan.error = static_cast<int>(std::strtol(action.c_str(), nullptr, 10));
    if (action.ends_with('+')) own.plan.kinds = ~0U;
  }
  own.record = &record;
}

}  // namespace

std::string absolute(int folder, const char* path) {
  if (path == nullptr) return "";
  std::string from;
  char buffer[4096];
  if (path[0] == '/') return path;
  const std::string link =
      folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder);
  const ssize_t size = ::readlink(link.c_str(), buffer, sizeof(buffer));
  if (size <= 0) return path;
  from.assign(buffer, static_cast<std::size_t>(size));
  return from + "/" + path;
}

int open_watched(const std::string& path, int flags, FunctionRef<int()> open_now) {
  const Lock lock(layer().mutex);
  if (!layer().watches(path)) return open_now();
  if ((flags & O_DIRECTORY) != 0 || (flags & O_ACCMODE) == O_RDONLY) {
    if ((flags & O_DIRECTORY) == 0) {
      Call call(Kind::kOpen, Phase::kRead, path);
      if (call.fails()) return -1;
    }
    const int fd = open_now();
    if (fd >= 0) layer().files[fd] = {path, number_of(path), (flags & O_DIRECTORY) != 0};
    return fd;
  }
  const bool makes = (flags & O_CREAT) != 0 && !is_there(path);
  set_last(Layer::Last::kOther, path);
  Call call(makes ? Kind::kCreate : Kind::kOther, Phase::kWrite, path);
  if (call.fails()) return -1;
  const int fd = open_now();
  if (fd < 0) return fd;
  const std::uint64_t number = number_of(path);
  layer().files[fd] = {path, number};
  if (!layer().graves.empty() && makes) {
    const std::string grave = layer().graves + "/" + std::to_string(number);
    if (::link(path.c_str(), grave.c_str()) != 0) std::abort();
  }
  call.made(number);
  return fd;
}

ssize_t write_watched(int fd, const void* bytes, std::size_t count, off_t offset,
                      FunctionRef<ssize_t(std::size_t)> write_now) {
  const Lock lock(layer().mutex);
  OpenFile* const file = find(fd);
  if (file == nullptr || !layer().watches(file->path)) return write_now(count);
  // A manifest is JSON, a file of values begins with a number.
  if (!std::exchange(file->is_written, true) && count > 0) {
    file->is_manifest = *static_cast<const char*>(bytes) == '{';
  }
  Call call(Kind::kWrite, file->is_manifest ? Phase::kCommit : Phase::kWrite, file->path);
  if (call.fails()) return -1;
  const ssize_t written = write_now(call.allowed(count));
  if (written < 0) return written;
  const std::uint64_t begin = offset < 0 ? file->end : static_cast<std::uint64_t>(offset);
  if (offset < 0) file->end += static_cast<std::uint64_t>(written);
  call.made(file->number, "", begin, static_cast<std::uint64_t>(written));
  return written;
}

int sync_watched(int fd, FunctionRef<int()> sync_now) {
  const Lock lock(layer().mutex);
  OpenFile* const file = find(fd);
  if (file == nullptr || !layer().watches(file->path)) return layer().skips_syncs ? 0 : sync_now();
  Phase phase = file->is_manifest ? Phase::kCommit : Phase::kFsync;
  if (file->is_folder) phase = phase_of_folder();
  Call call(file->is_folder ? Kind::kSyncFolder : Kind::kSync, phase, file->path);
  if (call.fails()) return -1;
  const int result = layer().skips_syncs ? 0 : sync_now();
  if (result == 0) call.made(file->number);
  return result;
}

int rename_watched(const std::string& from, const std::string& to, FunctionRef<int()> rename_now) {
  const Lock lock(layer().mutex);
  if (!layer().watches(from) && !layer().watches(to)) return rename_now();
  const bool is_manifest = to.ends_with("/manifest.json");
  Call call(Kind::kRename, is_manifest ? Phase::kCommit : Phase::kRename, from);
  set_last(is_manifest ? Layer::Last::kManifest : Layer::Last::kOther, to);
  if (call.fails()) return -1;
  const int result = rename_now();
  if (result == 0) call.made(0, to);
  return result;
}

int remove_watched(const std::string& path, FunctionRef<int()> remove_now) {
  const Lock lock(layer().mutex);
  if (!layer().watches(path)) return remove_now();
  struct stat status {};
  const bool is_there = ::lstat(path.c_str(), &status) == 0;
  // Where a run looks for a request before it copies.
  const bool begins_copy = path.ends_with("/.checkpoint-now");
  if (!is_there && !begins_copy) return remove_now();
  const bool is_folder = is_there && S_ISDIR(status.st_mode);
  set_last(Layer::Last::kRemoval, path);
  Call call(is_folder ? Kind::kRemoveFolder : Kind::kRemove,
            begins_copy ? Phase::kCopy : Phase::kCleanUp, path);
  if (call.fails()) return -1;
  const int result = remove_now();
  if (result == 0 || begins_copy) call.made(status.st_ino);
  return result;
}

int make_folder_watched(const std::string& path, FunctionRef<int()> make_now) {
  const Lock lock(layer().mutex);
  if (!layer().watches(path) || is_there(path)) return make_now();
  set_last(Layer::Last::kOther, path);
  Call call(Kind::kMakeFolder, Phase::kWrite, path);
  if (call.fails()) return -1;
  const int result = make_now();
  if (result == 0) call.made(number_of(path));
  return result;
}

int close_watched(int fd) {
  static auto* const close_now = next(&::close, "close");
  const Lock lock(layer().mutex);
  OpenFile* const found = find(fd);
  if (found == nullptr) return close_now(fd);
  const OpenFile file = *found;
  layer().files.erase(fd);
  if (file.is_folder || !file.is_written || !layer().watches(file.path)) return close_now(fd);
  Call call(Kind::kClose, file.is_manifest ? Phase::kCommit : Phase::kFsync, file.path);
  const bool fails = call.fails();
  const int error = errno;
  const int result = close_now(fd);
  if (!fails) {
    call.made(file.number);
    return result;
  }
  errno = error;
  return -1;
}

int other_watched(int fd, FunctionRef<int()> change_now) {
  const Lock lock(layer().mutex);
  const OpenFile* const file = find(fd);
  if (file != nullptr && layer().watches(file->path)) {
    Call call(Kind::kOther, Phase::kWrite, file->path);
    if (call.fails()) return -1;
    call.made(file->number);
  }
  return change_now();
}

const char* name_of(Phase phase) {
  constexpr const char* kNames[kPhases] = {"copy",   "write",    "fsync", "rename",
                                           "commit", "clean_up", "read",  "run"};
  return kNames[static_cast<int>(phase)];
}

void watch(Record* record, const Plan& plan, const char* root, const char* graves) {
  const Lock lock(layer().mutex);
  layer().plan = plan;
  layer().root = root;
  layer().graves = graves;
  layer().files.clear();
  layer().last = Layer::Last::kOther;
  layer().record = record;
}

void skip_syncs() {
  layer().skips_syncs = true;
}

void count_copy() {
  const Lock lock(layer().mutex);
  if (layer().record == nullptr) return;
  Call call(Kind::kClose, Phase::kCopy, layer().root);
  if (!call.fails()) call.made();
}

}  // namespace troika::chaos
