#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/checkpoint/store_lease.h>
#include <troika/observe/log.h>

#include <utility>

namespace troika {
namespace {

constexpr Seconds kLook{1};  // between two looks at another process's mark
// A look that takes longer has met an outage.
constexpr Seconds kPromptAnswer{3};
// A store that is away again and again says nothing of who writes there.
constexpr Seconds kLongestWatch{1800};

std::string holder_of(const std::string& text) {
  const std::optional<OwnerMark> mark = parse_mark(text);
  return mark ? mark->holder : "another run";
}

}  // namespace

StoreLease::StoreLease(MarkFile& file, OwnerMark own, std::string shown, std::string hint)
    : file_(file), own_(std::move(own)), shown_(std::move(shown)), hint_(std::move(hint)) {}

void StoreLease::take() {
  const std::optional<std::string> found = file_.read();
  const Left left = found && !is_own(*found) ? watch(*found) : Left::kNothing;
  file_.write(format_mark(own_), [&] {
    const std::optional<std::string> now = file_.read();
    if (now && now != found && !is_own(*now)) refuse(*now);
    renewed_ = file_.now().count();
  });
  if (left == Left::kUntouched) file_.wait(kRequestTime);
  // Of two that begin at once the one that wrote last stays.
  const std::optional<std::string> now = file_.read();
  if (now && !is_own(*now)) refuse(*now);
}

void StoreLease::refuse(const std::string& text) const {
  throw UsageError(shown_ + " is being written by " + holder_of(text), hint_);
}

// What a process of another host does shows in its mark alone. Marks are compared as a whole, and
// no clock is read from them: those of two hosts may differ by more than the patience.
StoreLease::Left StoreLease::watch(const std::string& found) const {
  const std::optional<OwnerMark> other = parse_mark(found);
  const std::optional<bool> lives = other ? lives_here(*other) : std::nullopt;
  if (lives == true) refuse(found);
  if (lives == false) return Left::kByTheDead;
  log_info(shown_ + " was last written by " + holder_of(found) + ": waiting " +
           format_fixed(kLongestTake.count(), 0) + " s, to see whether it still is");
  const Seconds begun = file_.now();
  for (Seconds since = begun; file_.now() - since < kPatience;) {
    file_.wait(kLook);
    const Seconds asked = file_.now();
    const std::optional<std::string> now = file_.read();
    if (!now) return Left::kNothing;
    if (*now != found) refuse(*now);
    // While the store was away the owner could not renew its mark: it has kPatience from now on.
    if (file_.now() - asked > kPromptAnswer) since = file_.now();
    if (file_.now() - begun > kLongestWatch) refuse(found);
  }
  return Left::kUntouched;
}

bool StoreLease::is_own(const std::string& text) const {
  const std::optional<OwnerMark> mark = parse_mark(text);
  return mark && is_of_one_process(*mark, own_);
}

// Another process has had the time to take the place, and to leave it again.
bool StoreLease::may_have_been_taken() const {
  return file_.now().count() - renewed_ > kPatience.count();
}

// A mark that is gone was removed by hand, or as an old file of its bucket, unless another process
// may have had the place meanwhile, and has removed its own mark at its end.
void StoreLease::observe(const std::optional<std::string>& text) {
  const bool is_taken = text ? !is_own(*text) : may_have_been_taken();
  const std::scoped_lock lock(mutex_);
  if (!is_taken || is_lost_) return;
  taker_ = text ? holder_of(*text) : "another run";
  is_lost_ = true;
}

void StoreLease::renew() {
  ++own_.heartbeats;
  Seconds checked{0};
  file_.write(format_mark(own_), [&] {
    check();
    checked = file_.now();
  });
  // A process that was stopped in between may have written over the mark of one that has taken the
  // place since: neither of them goes on.
  if (file_.now() - checked > kRequestTime) observe(std::nullopt);
  renewed_ = checked.count();
}

void StoreLease::check() {
  if (!is_lost_) observe(file_.read());
  const std::scoped_lock lock(mutex_);
  if (is_lost_) throw StorageError(shown_ + " has been taken by " + taker_, hint_);
}

void StoreLease::release() {
  if (is_lost_) return;
  const std::optional<std::string> found = file_.read();
  if (found && is_own(*found)) file_.remove();
}

}  // namespace troika
