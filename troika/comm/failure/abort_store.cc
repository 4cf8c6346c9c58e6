#include <troika/base/failure_timing.h>
#include <troika/comm/failure/abort_store.h>

#include <atomic>
#include <charconv>
#include <exception>
#include <future>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

namespace troika {
namespace {

// Beside the members' own keys.
constexpr const char* kCount = "count";
constexpr const char* kFirst = "first";

}  // namespace

class AbortStore::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Store store) : store_(std::move(store)) {}

  // How many requests of a kind are under way that have been abandoned.
  using Abandoned = std::atomic<int>;
  Abandoned writes = 0;
  Abandoned reads = 0;

  // What `request` returns of the store, if it does in time. The store's client waits for answers
  // without a deadline, so the request is made in a thread that can be abandoned.
  template <class Request>
  auto ask(Abandoned& abandoned, Seconds timeout, Request request) noexcept {
    using Answer = std::invoke_result_t<Request, Store&>;
    try {
      std::promise<Answer> promise;
      std::future<Answer> answer = promise.get_future();
      // Set by whoever is first: the answer, or the caller at the time-out.
      const auto over = std::make_shared<std::atomic<bool>>(false);
      std::thread([self = shared_from_this(), &abandoned, over, request = std::move(request),
                   promise = std::move(promise)]() mutable {
        try {
          promise.set_value(request(self->store_));
        } catch (const std::exception&) {
          promise.set_value(Answer());
        }
        if (over->exchange(true)) --abandoned;
      }).detach();
      if (answer.wait_for(timeout) == std::future_status::ready) return answer.get();
      ++abandoned;
      if (over->exchange(true)) --abandoned;
      // Of threads, there are too many. NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const std::exception&) {
    }
    return Answer();
  }

 private:
  Store store_;
};

AbortStore::AbortStore(Store store, int index)
    : connection_(std::make_shared<Connection>(std::move(store))), index_(index) {}

void AbortStore::post(const Failure& reason) noexcept {
  (void)connection_->ask(connection_->writes, failure_timing::kStoreAnswer,
                         [key = std::to_string(index_), text = encode(reason)](Store& store) {
                           // The reason before the name of its member: first() of another rank
                           // reads the reason that kFirst names.
                           store.set(key, text);
                           // Counted, so that only the first member writes its name: the later ones
                           // fail because of it.
                           if (store.add(kCount, 1) == 1) store.set(kFirst, key);
                           return true;
                         });
}

std::optional<Failure> AbortStore::reason_of(int member, Seconds timeout) noexcept {
  // A write that was abandoned says that the store is gone: each read would leave another thread
  // behind.
  if (connection_->writes > 0) return std::nullopt;
  return connection_->ask(
      connection_->reads, timeout + failure_timing::kStoreAnswer,
      [key = std::to_string(member), timeout](Store& store) -> std::optional<Failure> {
        if (!store.wait({key}, Deadline::in(timeout))) return std::nullopt;
        return decode_failure(store.get_all({key}).front());
      });
}

std::optional<AbortStore::Posted> AbortStore::first() noexcept {
  if (connection_->reads > 0) return std::nullopt;
  return connection_->ask(connection_->reads, failure_timing::kStoreAnswer,
                          [](Store& store) -> std::optional<Posted> {
                            if (!store.is_set(kFirst)) return std::nullopt;
                            const std::string key = store.get_all({kFirst}).front();
                            int member = -1;
                            std::from_chars(key.data(), key.data() + key.size(), member);
                            return Posted{member, decode_failure(store.get_all({key}).front())};
                          });
}

}  // namespace troika
