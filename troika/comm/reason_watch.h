// Hears of reasons on the board that no connection tells of: of an abort by a member that nobody
// waits for, or of a connection that ended when nobody was listening.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/reason_board.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace troika {

class ReasonWatch {
 public:
  // How often it looks, while nothing that is under way ends: the store has one request of each
  // member by that, and none of members that get on.
  static constexpr Seconds kInterval{1};
  using Heard = std::function<void(int member, const Reason& reason)>;

  // Calls `heard` in a thread of its own, once at most. The board must outlive this.
  ReasonWatch(ReasonBoard& board, Heard heard);
  ~ReasonWatch();
  ReasonWatch(const ReasonWatch&) = delete;
  ReasonWatch& operator=(const ReasonWatch&) = delete;

  // An operation that waits for others, for as long as this lives.
  class UnderWay {
   public:
    explicit UnderWay(ReasonWatch& watch) : watch_(watch) { ++watch_.under_way_; }
    ~UnderWay() {
      ++watch_.ended_;
      --watch_.under_way_;
    }
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

   private:
    ReasonWatch& watch_;
  };

 private:
  void look_until_stopped(const Heard& heard);

  ReasonBoard& board_;
  std::atomic<int> under_way_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by the mutex
  std::thread thread_;
};

}  // namespace troika
