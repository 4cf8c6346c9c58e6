#include <troika/rpc/segments.h>

#include <chrono>
#include <utility>

namespace troika::detail {

std::unique_ptr<OwnSegment> ClientSegments::take(const Attach& attach) {
  {
    const std::lock_guard lock(mutex_);
    if (useless_) return nullptr;
    if (!free_.empty()) {
      std::unique_ptr<OwnSegment> taken = std::move(free_.back());
      free_.pop_back();
      return taken;
    }
  }
  std::unique_ptr<OwnSegment> made = OwnSegment::create();
  const bool attached = made && attach(made->name()) && made->hand_over();
  if (attached) return made;
  const std::lock_guard lock(mutex_);
  useless_ = true;
  return nullptr;
}

void ClientSegments::give_back(std::unique_ptr<OwnSegment> segment) {
  constexpr std::size_t kMostFree = 8;
  if (!segment) return;
  const std::lock_guard lock(mutex_);
  if (free_.size() < kMostFree) free_.push_back(std::move(segment));
}

void ClientSegments::forget() {
  std::vector<std::unique_ptr<OwnSegment>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(free_);
  useless_ = false;
}

bool ServerSegments::attach(std::string_view name) {
  constexpr std::size_t kMost = 128;  // clients may make us hold two descriptors for each
  const std::lock_guard lock(mutex_);
  drop_orphans();
  if (known_.size() >= kMost) return false;
  std::shared_ptr<PeerSegment> opened = PeerSegment::find(name);
  return opened && known_.emplace(name, std::move(opened)).second;
}

std::shared_ptr<PeerSegment> ServerSegments::find(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (Clock::now() - looked_ > std::chrono::seconds(1)) drop_orphans();
  const auto found = known_.find(name);
  const bool usable = found != known_.end() && found->second->memory() != nullptr;
  return usable ? found->second : nullptr;
}

void ServerSegments::drop_orphans() {
  std::erase_if(known_, [](const auto& entry) { return entry.second->is_orphan(); });
  looked_ = Clock::now();
}

}  // namespace troika::detail
