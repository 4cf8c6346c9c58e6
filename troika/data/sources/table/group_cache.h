// The decoded row groups that are in use: the latest that fit a number of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace troika {

// The images of one side of a group, as they are stored.
struct StoredImages {
  std::string bytes;               // one after the other
  std::vector<std::int64_t> ends;  // of each in `bytes`
  std::vector<std::int64_t> rows;  // of each in the group
  std::vector<bool> paths;         // of each, whether it is a path among bytes
};

// The rows of one side of a group: a tensor [rows, width] for each of the model's.
struct DecodedGroup {
  std::vector<at::Tensor> tensors;
  std::vector<StoredImages> images;   // of each column of images
  std::vector<std::int64_t> numbers;  // of each row in the table, where they are asked for
  // The rows of each class, where classes come equally often.
  std::vector<std::vector<std::int32_t>> rows_of_classes = {};

  // Returns the row that a RowPosition of a class stands for, or of all where there are no classes.
  [[nodiscard]] std::int64_t row(std::int64_t source, std::int64_t position) const {
    if (rows_of_classes.empty()) return position;
    return rows_of_classes[static_cast<std::size_t>(source)][static_cast<std::size_t>(position)];
  }

  [[nodiscard]] std::int64_t bytes() const;
};

// Thread safe. A group that several threads ask for is decoded by one of them.
class GroupCache {
 public:
  using Decode = std::function<DecodedGroup(std::size_t group)>;

  // Keeps at most `max_bytes`, or one group where that is more. `decode` is called by several
  // threads.
  GroupCache(std::int64_t max_bytes, Decode decode);

  // Returns a group, decoded on the calling thread where it is not there. Throws what decoding
  // throws.
  [[nodiscard]] std::shared_ptr<const DecodedGroup> get(std::size_t group);
  // Has these groups decoded beside the caller, in place of those asked for before. What decoding
  // throws is for get() to throw.
  void prefetch(std::vector<std::size_t> groups);
  // Returns how many groups were decoded so far.
  [[nodiscard]] std::int64_t decoded() const;
  // Returns how many kept groups a search compares with at most.
  [[nodiscard]] std::int64_t longest_search() const;

 private:
  struct CachedGroup {
    std::size_t group;
    std::shared_ptr<const DecodedGroup> rows;
  };

  [[nodiscard]] std::shared_ptr<const DecodedGroup> find(std::size_t group);
  // Decodes a group, and keeps it. `lock` is held when called and on return, not meanwhile.
  std::shared_ptr<const DecodedGroup> make(std::size_t group, std::unique_lock<std::mutex>& lock);
  void run(const std::stop_token& stop);

  std::int64_t max_bytes_;
  Decode decode_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<CachedGroup> cached_;  // the latest first
  std::unordered_map<std::size_t, std::list<CachedGroup>::iterator>
      positions_;                    // of groups in `cached_`
  std::set<std::size_t> decoding_;   // by some thread
  std::vector<std::size_t> wanted_;  // by prefetch(), the next last
  std::int64_t bytes_ = 0;
  std::int64_t decoded_ = 0;
  std::jthread thread_;  // last: it ends before what it uses. Started by the first prefetch()
};

}  // namespace troika
