#include <troika/base/error.h>
#include <troika/rpc/received_body.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace troika::detail {

namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

struct BodyMemory::FreeBlocks {
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;
  static constexpr std::size_t kMostBlocks = 4;

  FreeBlocks() { blocks.reserve(kMostBlocks + 1); }
  ~FreeBlocks() {
    for (const auto& [memory, bytes] : blocks) ::operator delete(memory, kAlignment);
  }
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;

  // Returns a block that is not much larger than `bytes`, and its size; null where there is none.
  std::pair<std::byte*, std::uint64_t> find(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    const auto suits = [&](const auto& block) {
      return block.second >= bytes && block.second / 2 <= bytes;
    };
    const auto found = std::ranges::find_if(blocks, suits);
    if (found == blocks.end()) return {nullptr, 0};
    const auto block = *found;
    blocks.erase(found);
    return block;
  }

  void put(std::byte* memory, std::uint64_t bytes) {
    if (bytes >= kLeastBytes) {
      const std::lock_guard lock(mutex);
      blocks.emplace_back(memory, bytes);
      if (blocks.size() <= kMostBlocks) return;
      memory = blocks.front().first;
      blocks.erase(blocks.begin());
    }
    ::operator delete(memory, kAlignment);
  }

  std::mutex mutex;
  std::vector<std::pair<std::byte*, std::uint64_t>> blocks;  // with their sizes, the oldest first
};

BodyMemory::BodyMemory() : free_blocks_(std::make_shared<FreeBlocks>()) {}

std::shared_ptr<std::byte> BodyMemory::take(std::uint64_t bytes) {
  auto [memory, size] = free_blocks_->find(bytes);
  if (memory == nullptr) {
    memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    size = bytes;
  }
  return {memory, [kept = free_blocks_, size = size](std::byte* owned) { kept->put(owned, size); }};
}

ReceivedBody::ReceivedBody(std::uint64_t bytes, std::shared_ptr<std::byte> memory,
                           std::string source)
    : memory_(std::move(memory)),
      bytes_(memory_.get(), static_cast<std::size_t>(bytes)),
      source_(std::move(source)) {}

ReceivedBody::ReceivedBody(std::span<std::byte> into, std::string source)
    : bytes_(into), source_(std::move(source)) {}

void ReceivedBody::append(std::span<const std::byte> chunk) {
  if (chunk.size() > bytes_.size() - received_) {
    throw DataError(source_ + ": the body goes on after the " + std::to_string(bytes_.size()) +
                    " bytes that were declared");
  }
  if (chunk.empty()) return;
  std::memcpy(bytes_.data() + received_, chunk.data(), chunk.size());
  received_ += chunk.size();
}

void ReceivedBody::read(SharedMemory& memory) {
  if (received_ == 0 && memory.read(bytes_)) return;
  throw DataError(source_ + ": the body in shared memory is shorter than the " +
                  std::to_string(bytes_.size()) + " bytes that were declared");
}

void ReceivedBody::finish() const {
  if (received_ == bytes_.size()) return;
  throw DataError(source_ + ": the body ends after " + std::to_string(received_) + " of " +
                  std::to_string(bytes_.size()) + " bytes");
}

}  // namespace troika::detail
