#include "device/backend/pinned.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "device/backend/accesses.h"

namespace troika::test {
namespace {

class PinnedMemory final : public c10::Allocator {
 public:
  static PinnedMemory& instance() {
    static auto* const memory = new PinnedMemory;
    return *memory;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free, c10::Device(c10::kCPU)};
    }
    constexpr std::size_t kAlignment = 64;
    void* const begin =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    TORCH_CHECK(begin != nullptr, "no host memory is left for ", bytes, " pinned bytes");
    const std::lock_guard lock(mutex_);
    sizes_[reinterpret_cast<Address>(begin)] = bytes;
    return {begin, begin, &free, c10::Device(c10::kCPU)};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  [[nodiscard]] bool holds(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<Address>(address);
    const auto after = sizes_.upper_bound(at);
    return after != sizes_.begin() && at < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  static void free(void* begin) {
    if (begin == nullptr) {
      return;
    }
    PinnedMemory& memory = instance();
    const std::lock_guard lock(memory.mutex_);
    const auto found = memory.sizes_.find(reinterpret_cast<Address>(begin));
    AccessHistory::instance().forget({found->first, found->first + found->second});
    memory.sizes_.erase(found);
    std::free(begin);
  }

  std::mutex mutex_;
  std::map<Address, std::size_t> sizes_;  // by first byte
};

}  // namespace

c10::Allocator& pinned_memory() {
  return PinnedMemory::instance();
}

bool is_pinned_address(const void* address) {
  return PinnedMemory::instance().holds(address);
}

}  // namespace troika::test
