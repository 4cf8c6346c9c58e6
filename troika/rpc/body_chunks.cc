#include <troika/rpc/body_chunks.h>
#include <troika/rpc/wire.h>

#include <algorithm>

namespace troika::detail {

std::uint64_t total_bytes(std::span<const std::span<const std::byte>> parts) {
  std::uint64_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return bytes;
}

std::span<const std::byte> BodyChunks::rest_of_part() const {
  return parts_.front().subspan(offset_);
}

void BodyChunks::advance(std::size_t bytes) {
  offset_ += bytes;
  while (!parts_.empty() && offset_ == parts_.front().size()) {
    parts_ = parts_.subspan(1);
    offset_ = 0;
  }
}

std::optional<std::span<const std::byte>> BodyChunks::next() {
  constexpr std::size_t kLong = std::size_t{64} << 10;
  advance(0);  // over parts that are empty
  if (parts_.empty()) return std::nullopt;
  const auto rest = rest_of_part();
  if (rest.size() >= kLong || parts_.size() == 1) {
    const auto chunk = rest.first(std::min(rest.size(), kChunkBytes));
    advance(chunk.size());
    return chunk;
  }
  gathered_.clear();
  while (!parts_.empty() && gathered_.size() < kChunkBytes) {
    const auto part = rest_of_part();
    if (part.size() >= kLong) break;
    const auto taken = part.first(std::min(part.size(), kChunkBytes - gathered_.size()));
    gathered_.insert(gathered_.end(), taken.begin(), taken.end());
    advance(taken.size());
  }
  return gathered_;
}

}  // namespace troika::detail
