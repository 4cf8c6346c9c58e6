// A Transport between the threads of one process, which buffers nothing: a message is complete when
// both sides have posted it.
#pragma once

#include <troika/comm/p2p/transport.h>

#include <ATen/ATen.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace troika::test {

class MemoryTransports {
 public:
  struct Post {
    at::Tensor bytes;
    bool complete = false;
  };
  struct Pair {
    std::deque<std::shared_ptr<Post>> sends, receives;
  };

  std::shared_ptr<Post> post(int from, int to, std::uint32_t tag, const at::Tensor& bytes,
                             bool sends) {
    const std::lock_guard lock(mutex_);
    auto posted = std::make_shared<Post>(Post{bytes});
    Pair& pair = pairs_[{from, to, tag}];
    (sends ? pair.sends : pair.receives).push_back(posted);
    if (sends) sent_bytes_[from] += bytes.numel();
    while (!pair.sends.empty() && !pair.receives.empty()) {
      const auto source = pair.sends.front(), target = pair.receives.front();
      pair.sends.pop_front();
      pair.receives.pop_front();
      if (source->bytes.numel() != target->bytes.numel()) throw std::logic_error("sizes differ");
      std::memcpy(target->bytes.mutable_data_ptr(), source->bytes.const_data_ptr(),
                  static_cast<std::size_t>(source->bytes.numel()));
      source->complete = target->complete = true;
    }
    changed_.notify_all();
    return posted;
  }

  void wait(const Post& post, int peer, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.at(), [&] { return post.complete; })) {
      throw TransportError(TransportError::Kind::kDeadline, peer, "nothing came");
    }
  }

  [[nodiscard]] std::int64_t sent_bytes(int member) {
    const std::lock_guard lock(mutex_);
    return sent_bytes_[member];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, std::uint32_t>, Pair> pairs_;
  std::map<int, std::int64_t> sent_bytes_;
};

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(MemoryTransports& transports, int rank, int size)
      : transports_(transports), rank_(rank), size_(size) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  std::unique_ptr<Message> send(int peer, const at::Tensor& bytes, std::uint32_t tag) override {
    return std::make_unique<Posted>(transports_, transports_.post(rank_, peer, tag, bytes, true),
                                    peer);
  }
  std::unique_ptr<Message> receive(int peer, const at::Tensor& bytes, std::uint32_t tag) override {
    return std::make_unique<Posted>(transports_, transports_.post(peer, rank_, tag, bytes, false),
                                    peer);
  }
  void abort() noexcept override {}

 private:
  class Posted final : public Message {
   public:
    Posted(MemoryTransports& transports, std::shared_ptr<MemoryTransports::Post> post, int peer)
        : transports_(transports), post_(std::move(post)), peer_(peer) {}
    void wait(const Deadline& deadline) override { transports_.wait(*post_, peer_, deadline); }

   private:
    MemoryTransports& transports_;
    std::shared_ptr<MemoryTransports::Post> post_;
    int peer_;
  };

  MemoryTransports& transports_;
  int rank_;
  int size_;
};

}  // namespace troika::test
