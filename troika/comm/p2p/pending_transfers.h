// Helpers for algorithms made of messages: tensors as bytes, and sets of messages under way.
#pragma once

#include <troika/comm/p2p/transport.h>
#include <troika/observe/recorder.h>

#include <memory>
#include <span>
#include <vector>

namespace troika::detail {

// Returns the memory of a contiguous tensor, as uint8 [nbytes].
[[nodiscard]] at::Tensor as_bytes(const at::Tensor& tensor);
[[nodiscard]] std::byte* data(const at::Tensor& bytes);
// Copies unless both are the same memory. In this thread alone, unlike Tensor::copy_.
void copy_bytes(const at::Tensor& to, const at::Tensor& from);

// The place of each member's part in a tensor of all parts; sizes and offsets are in bytes.
class Parts {
 public:
  Parts(std::span<const std::int64_t> counts, std::int64_t element_size);
  // Cuts `elements` as evenly as possible: the first parts get one more.
  static Parts even(std::int64_t elements, int parts, std::int64_t element_size);

  [[nodiscard]] std::int64_t bytes(int part) const { return bytes_[index(part)]; }
  [[nodiscard]] std::int64_t offset(int part) const { return offsets_[index(part)]; }
  [[nodiscard]] std::int64_t largest() const;
  // Returns the bytes of one part, within the bytes of all.
  [[nodiscard]] at::Tensor of(const at::Tensor& whole, int part) const;

 private:
  static std::size_t index(int part) { return static_cast<std::size_t>(part); }
  std::vector<std::int64_t> bytes_;
  std::vector<std::int64_t> offsets_;
};

// Messages that are waited for together. Empty ones are not sent at all. The record counts the
// bytes that are sent, and each wait in which something is received.
class PendingTransfers {
 public:
  PendingTransfers(Transport& transport, const Deadline& deadline, const OperationRecord& record)
      : transport_(transport), deadline_(deadline), record_(record) {}

  void send(int peer, const at::Tensor& bytes, std::uint32_t tag);
  void receive(int peer, const at::Tensor& bytes, std::uint32_t tag);
  // Waits for all messages so far.
  void wait();

 private:
  Transport& transport_;
  Deadline deadline_;
  OperationRecord record_;
  bool receives_ = false;  // among those that are waited for next
  std::vector<std::unique_ptr<Transport::Message>> messages_;
};

// Returns the other members, those after `rank` first, so that not every member starts with the
// same one.
[[nodiscard]] std::vector<int> peers_after(int rank, int size);
// Returns peers_after() in reverse order: first the members whose messages are likely to come
// first.
[[nodiscard]] std::vector<int> peers_before(int rank, int size);

}  // namespace troika::detail
