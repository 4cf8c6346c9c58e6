#include <ATen/ATen.h>
#include <troika/data/sources/table/group_cache.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troika {

std::int64_t DecodedGroup::bytes() const {
  auto bytes = static_cast<std::int64_t>(numbers.size() * sizeof(numbers[0]));
  for (const at::Tensor& each : tensors) bytes += static_cast<std::int64_t>(each.nbytes());
  for (const StoredImages& each : images) {
    bytes += static_cast<std::int64_t>(each.bytes.size() + 16 * each.ends.size());
  }
  for (const std::vector<std::int32_t>& each : rows_of_classes) {
    bytes += static_cast<std::int64_t>(each.size() * sizeof(each[0]));
  }
  return bytes;
}

GroupCache::GroupCache(std::int64_t max_bytes, Decode decode)
    : max_bytes_(max_bytes), decode_(std::move(decode)) {}

std::shared_ptr<const DecodedGroup> GroupCache::get(std::size_t group) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (auto found = find(group)) return found;
    if (!decoding_.contains(group)) return make(group, lock);
    changed_.wait(lock);
  }
}

void GroupCache::prefetch(std::vector<std::size_t> groups) {
  const std::scoped_lock lock(mutex_);
  wanted_ = std::move(groups);
  std::ranges::reverse(wanted_);
  if (!thread_.joinable()) thread_ = std::jthread([this](const auto& stop) { run(stop); });
  changed_.notify_all();
}

std::shared_ptr<const DecodedGroup> GroupCache::find(std::size_t group) {
  const auto found = positions_.find(group);
  if (found == positions_.end()) return nullptr;
  cached_.splice(cached_.begin(), cached_, found->second);  // the iterator stays valid
  return found->second->rows;
}

std::shared_ptr<const DecodedGroup> GroupCache::make(std::size_t group,
                                                     std::unique_lock<std::mutex>& lock) {
  decoding_.insert(group);
  lock.unlock();
  std::shared_ptr<const DecodedGroup> made;
  std::exception_ptr failure;
  try {
    made = std::make_shared<const DecodedGroup>(decode_(group));
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  decoding_.erase(group);
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  ++decoded_;
  bytes_ += made->bytes();
  cached_.push_front({group, made});
  positions_[group] = cached_.begin();
  while (bytes_ > max_bytes_ && cached_.size() > 1) {
    bytes_ -= cached_.back().rows->bytes();
    positions_.erase(cached_.back().group);
    cached_.pop_back();
  }
  return made;
}

void GroupCache::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !wanted_.empty(); })) {
    const std::size_t group = wanted_.back();
    wanted_.pop_back();
    if (decoding_.contains(group) || find(group)) continue;
    try {
      make(group, lock);
    } catch (...) {  // get() throws it again, on the thread that needs the group
      wanted_.clear();
    }
  }
}

std::int64_t GroupCache::longest_search() const {
  const std::scoped_lock lock(mutex_);
  std::size_t longest = 0;
  for (std::size_t i = 0; i < positions_.bucket_count(); ++i) {
    longest = std::max(longest, positions_.bucket_size(i));
  }
  return static_cast<std::int64_t>(longest);
}

std::int64_t GroupCache::decoded() const {
  const std::scoped_lock lock(mutex_);
  return decoded_;
}

}  // namespace troika
