// Internal: blocks of remote files on a disk of this host, so that a second reading of data is
// local. All processes of the host may share a folder. Each block is a file with its hash, which
// appears whole or not at all; one that is damaged counts as not there.
#pragma once

#include <troika/storage/store_plugin.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

namespace troika {

// Thread safe. Never throws: what the disk refuses is told once in the log, and read remotely.
class BlockCache final : public store_plugin::Blocks {
 public:
  // Keeps about `most_bytes` in `folder`, which is made when it is needed: the blocks that were
  // used first in a process longest ago go first. A process counts what it adds itself, and looks
  // at the folder each time that it has added a sixteenth.
  BlockCache(std::filesystem::path folder, std::uint64_t most_bytes);

  [[nodiscard]] bool read(std::string_view file, std::int64_t block, std::size_t offset,
                          std::span<std::byte> out) const override;
  void put(std::string_view file, std::int64_t block,
           std::span<const std::byte> bytes) const override;

 private:
  [[nodiscard]] std::filesystem::path path_of(std::string_view file, std::int64_t block) const;
  // Returns whether the block's file is there and whole. Looks once a process.
  [[nodiscard]] bool is_whole(const std::filesystem::path& path) const;
  void write(const std::filesystem::path& path, std::span<const std::byte> bytes) const;
  void count(std::uint64_t bytes) const;
  void make_room() const;
  void warn_once(std::string_view what) const;

  std::filesystem::path folder_;
  std::uint64_t most_bytes_;
  mutable std::mutex mutex_;
  mutable std::unordered_set<std::string> whole_;
  mutable std::uint64_t uncounted_;  // bytes that were added since this process looked
  mutable std::atomic<bool> has_warned_ = false;
};

}  // namespace troika
