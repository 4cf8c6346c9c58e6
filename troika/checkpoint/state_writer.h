// Writes what one rank owns of a run's state, while training goes on.
#pragma once

#include <troika/checkpoint/encryption.h>
#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/safetensors_header.h>
#include <troika/param/state_dict.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troika {

// One writing at a time. Not thread safe.
class StateWriter {
 public:
  static constexpr std::uint64_t kCopyAll = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t kCopyNothing = 0;

  // Encrypts what it writes, where there is a key.
  explicit StateWriter(std::optional<EncryptionKey> key = {}) : key_(std::move(key)) {}
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;
  ~StateWriter() = default;

  // Starts to write this rank's parts of `state` to the file `name` in `folder`, which is made, or
  // may be a URL: then they go straight to the store. Copies at most `most_copied` bytes of them to
  // memory of the host, which is kept for the next time, and writes the others before it returns.
  // Of these it holds one at a time in the host's memory where they are on a device, and none
  // otherwise. When this returns, the state may change. Requires that no writing is under way.
  void begin(const StateDict& state, const std::filesystem::path& folder, const std::string& name,
             std::uint64_t most_copied = kCopyAll);
  [[nodiscard]] bool is_writing() const { return thread_.joinable(); }
  // Returns whether wait() would return at once.
  [[nodiscard]] bool is_done() const { return done_; }
  // Waits until the file is on disk, and returns what there is in it, or what went wrong.
  [[nodiscard]] ShardReport wait();
  // Returns the bytes of the copies.
  [[nodiscard]] std::uint64_t staging_bytes() const;

 private:
  struct Source {
    at::Tensor values;  // a copy, or a view of the state
    bool is_copy = false;
  };
  // Lists the parts of the state, and copies the last ones in the file's order.
  void stage(const StateDict& state, std::uint64_t most_copied);
  void copy(at::Tensor& values, std::size_t index);
  void write(const std::filesystem::path& folder, const std::string& name);
  // Returns the bytes of a part as its turn comes, in memory of the host.
  [[nodiscard]] std::span<const std::byte> bytes_of(const TensorEntry& entry);
  // Lets begin() return.
  void release_state();

  std::optional<EncryptionKey> key_;
  std::vector<at::Tensor> memory_;  // of copies, the last in the file first
  std::vector<TensorEntry> entries_;
  std::map<std::string, Source, std::less<>> sources_;
  at::Tensor on_host_;  // of a device's part that is being written
  ShardReport report_;
  std::promise<void> state_released_;
  bool is_state_released_ = false;
  std::atomic<bool> done_ = false;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace troika
