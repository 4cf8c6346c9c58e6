// Takes a place by the mark in it, keeps it, and notices when another process has taken
// it. These are the rules alone, without threads and stores: tests drive them by their own clock.
//
// A store has no locks, and only a single write is atomic there. So the rules lean on times, as
// Fischer's algorithm does (in Lamport, "A fast mutual exclusion algorithm", 1987):
// - An owner that lives renews its mark within kPatience, however long the store has been away.
// - An owner writes within kRequestTime of having read its own mark, or reads it again.
// - A process that takes a place over watches the mark for kPatience in which the store answers,
//   writes its own, waits kRequestTime, and reads whether its own is still there. What the owner
//   before was writing has arrived by then, and the next thing that it reads is the new mark.
#pragma once

#include <troika/base/time.h>
#include <troika/checkpoint/owner_mark.h>
#include <troika/storage/outage.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace troika {

// The file of a mark, and the time that passes meanwhile.
class MarkFile {
 public:
  MarkFile() = default;
  MarkFile(const MarkFile&) = delete;
  MarkFile& operator=(const MarkFile&) = delete;
  virtual ~MarkFile() = default;

  // Returns the text; nothing where there is no mark. May take as long as a store is away. Throws
  // DataError, StorageError.
  [[nodiscard]] virtual std::optional<std::string> read() const = 0;
  // Writes, and tries again while the store is away. Calls `check` right before each attempt: what
  // that throws ends it. Throws StorageError.
  virtual void write(const std::string& text, const std::function<void()>& check) = 0;
  virtual void remove() = 0;

  // Returns the time since some moment. It goes on while this process is stopped, or its host
  // sleeps: others may take the place then.
  [[nodiscard]] virtual Seconds now() const = 0;
  virtual void wait(Seconds time) const = 0;
};

// One thread takes, renews and releases; any may check.
class StoreLease {
 public:
  static constexpr Seconds kHeartbeatInterval{5};
  // The longest that one attempt to write a small file takes: a store's time-outs are seconds.
  static constexpr Seconds kRequestTime{20};
  // The time that another host's mark has to stay as it is, before its run counts as dead.
  static constexpr Seconds kPatience{60};
  static_assert(kPatience > kHeartbeatInterval + Seconds(kLongestRetryPause) + kRequestTime);
  // The time that take() waits for a dead owner's mark, as long as the store answers.
  static constexpr Seconds kLongestTake = kPatience + kRequestTime;

  // `file` must outlive this. `shown` names the place in messages, and `hint` says what to do where
  // another process has it.
  StoreLease(MarkFile& file, OwnerMark own, std::string shown, std::string hint);

  // Takes the place. Throws UsageError naming the holder where that lives; DataError, StorageError.
  void take();
  // Renews the mark, every kHeartbeatInterval. Throws as check() does, and what the file throws.
  void renew();
  // Throws StorageError where another process has taken the place, now or at any time since take().
  void check();
  // Returns whether renew() or check() have found that.
  [[nodiscard]] bool is_lost() const { return is_lost_; }
  // Removes the mark, unless another process has taken the place. Throws what the file throws.
  void release();

 private:
  // Says what is known of the process that has left a mark.
  enum class Left { kNothing, kByTheDead, kUntouched };
  [[nodiscard]] Left watch(const std::string& found) const;
  [[noreturn]] void refuse(const std::string& text) const;
  [[nodiscard]] bool is_own(const std::string& text) const;
  [[nodiscard]] bool may_have_been_taken() const;
  void observe(const std::optional<std::string>& text);

  MarkFile& file_;
  OwnerMark own_;
  std::string shown_, hint_;
  std::atomic<double> renewed_ = 0;  // the time before the mark was written last
  std::atomic<bool> is_lost_ = false;
  std::mutex mutex_;
  std::string taker_;  // the process that has taken the place
};

}  // namespace troika
