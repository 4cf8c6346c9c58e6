// Messages between pairs of a shared-memory group, in order, through the channels of the control
// blocks. A message that fits into what is free of the channel is gone at once; longer ones move
// while sender and receiver, in whatever thread, call progress().
#pragma once

#include <troika/comm/shm/shm_group.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troika::shm {

// Thrown when sender and receiver disagree on a message's size.
class WrongSize : public std::runtime_error {
 public:
  WrongSize(int member, std::uint64_t theirs, std::uint64_t ours, std::string label)
      : std::runtime_error("wrong size"),
        member_(member),
        theirs_(theirs),
        ours_(ours),
        label_(std::move(label)) {}
  [[nodiscard]] int member() const { return member_; }
  [[nodiscard]] std::uint64_t theirs() const { return theirs_; }
  [[nodiscard]] std::uint64_t ours() const { return ours_; }
  // Returns the label of the batch that expects another size.
  [[nodiscard]] const std::string& label() const { return label_; }

 private:
  int member_;
  std::uint64_t theirs_, ours_;
  std::string label_;
};

class Mailbox {
 public:
  // Messages that are waited for together.
  class Batch {
   public:
    explicit Batch(std::string_view label = {}) : label_(label) {}
    [[nodiscard]] bool done() const { return left_.load() == 0; }

   private:
    friend class Mailbox;
    std::string label_;
    std::atomic<int> left_ = 0;
  };

  explicit Mailbox(ShmGroup& group);

  // Post a message; `data` must stay as it is until the batch is done. Thread-safe.
  void send(const std::shared_ptr<Batch>& batch, int to, const std::byte* data, std::size_t bytes);
  void receive(const std::shared_ptr<Batch>& batch, int from, std::byte* data, std::size_t bytes);
  // Moves the bytes that can be moved, of all batches. Thread-safe. Throws WrongSize, whichever
  // batch it concerns.
  void progress();
  // Returns whether peers need nothing more of this member for the batch: what it sends has left,
  // and what it receives fits into the channels.
  [[nodiscard]] bool is_buffered(const std::shared_ptr<Batch>& batch);
  // Waits until the batch is done. Throws TimedOut naming the members whose messages are missing,
  // Broken, WrongSize.
  void wait(const std::shared_ptr<Batch>& batch, const Deadline& deadline);
  // Returns whether wait() would throw by now, rather than go on.
  [[nodiscard]] bool is_over(const std::shared_ptr<Batch>& batch, const Deadline& deadline);

 private:
  struct Message {
    std::shared_ptr<Batch> batch;
    std::byte* data;
    std::uint64_t bytes;
    std::uint64_t moved = 0;
    bool announced = false;  // its size has been written, or read
  };
  // One direction of one pair. Positions count all bytes that ever passed.
  struct ChannelQueue {
    Channel* positions;
    std::byte* ring;
    std::deque<Message> queue;
  };
  [[nodiscard]] bool send_some(int to);
  [[nodiscard]] bool receive_some(int from);
  [[nodiscard]] std::vector<int> missing(const std::shared_ptr<Batch>& batch);
  void copy_in(const ChannelQueue& channel, std::uint64_t at, const std::byte* from,
               std::size_t bytes) const;
  void copy_out(const ChannelQueue& channel, std::uint64_t at, std::byte* to,
                std::size_t bytes) const;

  ShmGroup& group_;
  std::size_t capacity_;
  std::mutex mutex_;
  std::vector<ChannelQueue> outgoing_, incoming_;  // by member
};

}  // namespace troika::shm
