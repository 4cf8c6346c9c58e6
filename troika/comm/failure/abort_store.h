// Publishes in the store the reason for which a member aborts, so that its peers can
// tell the cause from its consequences.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/time.h>
#include <troika/rendezvous/store.h>

#include <memory>
#include <optional>

namespace troika {

class AbortStore {
 public:
  // `store` is a connection that only abort stores use by now, behind a prefix of its own.
  AbortStore(Store store, int index);

  // All functions below are thread-safe. They ignore failures of the store, which come with an
  // error that matters more. The store may be part of a process that is stopped, or of a host that
  // has lost its power. No function waits much longer than `timeout`, or
  // failure_timing::kStoreAnswer.
  // Publishes why this member aborts.
  void post(const Failure& reason) noexcept;
  // Returns why `member` aborted, if it says so within `timeout`.
  [[nodiscard]] std::optional<Failure> reason_of(int member, Seconds timeout) noexcept;
  // The first member that aborted, this one included; first() returns nothing if none has.
  struct Posted {
    int member;
    Failure reason;
  };
  [[nodiscard]] std::optional<Posted> first() noexcept;

 private:
  class Connection;
  std::shared_ptr<Connection> connection_;  // stays for requests that have been abandoned
  int index_;
};

}  // namespace troika
