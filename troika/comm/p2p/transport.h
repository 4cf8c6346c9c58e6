// Messages between pairs of members, which a transport gives to the collectives of collectives.h. A
// transport need not buffer, and may deliver messages of different tags in any order.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>

#include <cstdint>
#include <memory>
#include <stdexcept>

namespace troika {

// The error of a message that does not arrive. The engine, which knows the operation, makes the
// user's error of it.
class TransportError : public std::runtime_error {
 public:
  enum class Kind {
    kDeadline,
    kBroken,
    kWrongSize,  // the details say what the peer sends
    kEnded       // in this process: the details say how
  };
  TransportError(Kind kind, int peer, const std::string& details)
      : std::runtime_error(details), kind_(kind), peer_(peer) {}
  [[nodiscard]] Kind kind() const { return kind_; }
  // Returns the member at the other end.
  [[nodiscard]] int peer() const { return peer_; }

 private:
  Kind kind_;
  int peer_;
};

class Transport {
 public:
  // A message under way. Must not outlive the transport.
  class Message {
   public:
    virtual ~Message() = default;
    // Waits for the message; call it at most once. Throws TransportError; the whole transport is
    // broken then.
    virtual void wait(const Deadline& deadline) = 0;
  };

  virtual ~Transport() = default;
  // Return this member's position, and how many members there are.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Start a message and return at once. `bytes` is one-dimensional, contiguous, uint8, not empty,
  // and must not change until the message is complete. Messages of the same pair, direction and
  // tag match in order; their sizes must be equal. Tags are below 2^31. Thread-safe. Throw
  // TransportError.
  [[nodiscard]] virtual std::unique_ptr<Message> send(int peer, const at::Tensor& bytes,
                                                      std::uint32_t tag) = 0;
  [[nodiscard]] virtual std::unique_ptr<Message> receive(int peer, const at::Tensor& bytes,
                                                         std::uint32_t tag) = 0;

  // Ends all messages under way, here and at the peers, with TransportError. Thread-safe.
  virtual void abort() noexcept = 0;
};

}  // namespace troika
