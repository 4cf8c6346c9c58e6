#include <troika/base/error.h>
#include <troika/checkpoint/store_owner.h>

#include <condition_variable>
#include <ctime>
#include <mutex>
#include <string_view>
#include <utility>

namespace troika {
namespace {

constexpr std::uint64_t kLongestMark = 4096;

class StoredMark final : public MarkFile {
 public:
  explicit StoredMark(ObjectStore store) : store_(std::move(store)) {}

  [[nodiscard]] std::optional<std::string> read() const override {
    const std::string folder(kOwnerMark, std::string_view(kOwnerMark).find('/'));
    for (const ObjectStore::File& file : store_.list(folder)) {
      if (file.name == kOwnerMark) return store_.read(kOwnerMark, kLongestMark);
    }
    return std::nullopt;
  }
  void write(const std::string& text, const std::function<void()>& check) override {
    store_.write_checked(kOwnerMark, text, check);
  }
  void remove() override { store_.remove(kOwnerMark); }

  // troika's Clock leaves out what a job was stopped for, and the steady one what a host slept.
  [[nodiscard]] Seconds now() const override {
    timespec time{};
    clock_gettime(CLOCK_BOOTTIME, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
  void wait(Seconds time) const override { std::this_thread::sleep_for(time); }

 private:
  ObjectStore store_;
};

}  // namespace

StoreOwner::StoreOwner(const ObjectStore& store, std::string hint)
    : file_(std::make_unique<StoredMark>(store)),
      place_(*file_, make_owner_mark(), shown_place(store.place()), std::move(hint)) {
  place_.take();
  thread_ = std::jthread([this](const std::stop_token& stop) { send_heartbeats(stop); });
}

StoreOwner::~StoreOwner() {
  thread_.request_stop();
  // Before the mark is removed: a heartbeat under way would write it again, and the next run would
  // wait for a process that has ended.
  if (thread_.joinable()) thread_.join();
  try {
    place_.release();
    // The next run waits for a sign of this one, and gets none.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const Error&) {
  }
}

void StoreOwner::send_heartbeats(const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any stopped;
  const auto is_over = [&] { return stop.stop_requested(); };
  while (!stopped.wait_for(lock, stop, StoreLease::kHeartbeatInterval, is_over)) {
    try {
      place_.renew();
      // A store that does not answer now may do so next time. NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const Error&) {
    }
  }
}

}  // namespace troika
