#include <troika/comm/reason_board.h>

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

class ReasonBoard::Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(Store store) : store_(std::move(store)) {}

  // How many questions of a kind are under way that nobody waits for any more.
  using LeftBehind = std::atomic<int>;
  LeftBehind posts = 0;
  LeftBehind looks = 0;

  // What `question` returns of the store, if it does in time. The store's client waits for answers
  // without a deadline, so the question is put in a thread that can be left behind.
  template <class Question>
  auto ask(LeftBehind& left_behind, Seconds patience, Question question) noexcept {
    using Answer = std::invoke_result_t<Question, Store&>;
    try {
      std::promise<Answer> promise;
      std::future<Answer> answer = promise.get_future();
      // Set by whoever is first: the answer, or the one who waits for it and gives up.
      const auto over = std::make_shared<std::atomic<bool>>(false);
      std::thread([self = shared_from_this(), &left_behind, over, question = std::move(question),
                   promise = std::move(promise)]() mutable {
        try {
          promise.set_value(question(self->store_));
        } catch (const std::exception&) {
          promise.set_value(Answer());
        }
        if (over->exchange(true)) --left_behind;
      }).detach();
      if (answer.wait_for(patience) == std::future_status::ready) return answer.get();
      ++left_behind;
      if (over->exchange(true)) --left_behind;
      // Of threads, there are too many. NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const std::exception&) {
    }
    return Answer();
  }

 private:
  Store store_;
};

ReasonBoard::ReasonBoard(Store store, int index)
    : line_(std::make_shared<Line>(std::move(store))), index_(index) {}

void ReasonBoard::post(const Reason& reason) noexcept {
  (void)line_->ask(line_->posts, kToAnswer,
                   [key = std::to_string(index_), text = reason.text()](Store& store) {
                     store.set(key, text);
                     if (store.add(kCount, 1) == 1) store.set(kFirst, key);
                     return true;
                   });
}

std::optional<Reason> ReasonBoard::reason_of(int member, Seconds patience) noexcept {
  if (line_->posts > 0) return std::nullopt;
  return line_->ask(
      line_->looks, patience + kToAnswer,
      [key = std::to_string(member), patience](Store& store) -> std::optional<Reason> {
        if (!store.wait({key}, Deadline::in(patience))) return std::nullopt;
        return Reason::from(store.get_all({key}).front());
      });
}

std::optional<ReasonBoard::Posted> ReasonBoard::first() noexcept {
  if (line_->looks > 0) return std::nullopt;
  return line_->ask(line_->looks, kToAnswer, [](Store& store) -> std::optional<Posted> {
    if (!store.is_set(kFirst)) return std::nullopt;
    const std::string key = store.get_all({kFirst}).front();
    int member = -1;
    std::from_chars(key.data(), key.data() + key.size(), member);
    return Posted{member, Reason::from(store.get_all({key}).front())};
  });
}

}  // namespace troika
