// The board on which a member that gives up leaves the reason, in the store, so that its peers can
// tell the cause from its consequences.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/reason.h>
#include <troika/rendezvous/store.h>

#include <memory>
#include <optional>

namespace troika {

class ReasonBoard {
 public:
  // `store` is a connection that only boards use by now, behind a prefix of this board's own.
  ReasonBoard(Store store, int index);

  // All are thread-safe; failures of the store are ignored, as they come with an error that matters
  // more. The store may be part of a process that is stopped, or of a host that has lost its power:
  // none of these waits much longer than `patience`, or kToAnswer.
  static constexpr Seconds kToAnswer{0.5};
  // Why this member gives up.
  void post(const Reason& reason) noexcept;
  // Why `member` gave up, if it says so in time.
  [[nodiscard]] std::optional<Reason> reason_of(int member, Seconds patience) noexcept;
  // Who gave up before all others, if anyone has, this member included.
  struct Posted {
    int member;
    Reason reason;
  };
  [[nodiscard]] std::optional<Posted> first() noexcept;

 private:
  class Line;
  std::shared_ptr<Line> line_;  // stays for questions that nobody waits for any more
  int index_;
};

}  // namespace troika
