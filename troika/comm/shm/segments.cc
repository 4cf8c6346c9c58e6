#include <troika/base/error.h>
#include <troika/comm/shm/segments.h>

namespace troika::shm {

std::shared_ptr<std::byte> Segments::allocate(const std::shared_ptr<Segments>& segments,
                                              std::size_t bytes) {
  auto memory = std::make_shared<MemoryFile>(MemoryFile::create(bytes));
  const std::lock_guard lock(segments->mutex_);
  const std::uint32_t segment = ++segments->allocated_;
  if (segments->wires_ == nullptr) return nullptr;
  for (const auto& wire : *segments->wires_) {
    if (wire && !wire->send(segment, bytes, memory->descriptor())) return nullptr;
  }
  std::byte* data = memory->data();
  segments->own_[data] = {bytes, segment};
  return {data, [memory, segments](std::byte* start) {
            const std::lock_guard guard(segments->mutex_);
            const auto own = segments->own_.find(start);
            if (segments->wires_ != nullptr) {
              for (const auto& wire : *segments->wires_) {
                if (wire) (void)wire->send(own->second.segment, 0, -1);
              }
            }
            segments->own_.erase(own);
          }};
}

void Segments::disconnect() {
  const std::lock_guard lock(mutex_);
  wires_ = nullptr;
}

std::optional<Location> Segments::locate(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto after = own_.upper_bound(data);
  if (after == own_.begin()) return std::nullopt;
  const auto& [start, own] = *--after;
  const auto offset = static_cast<std::size_t>(data - start);
  if (offset + bytes > own.bytes) return std::nullopt;
  return Location{own.segment, offset};
}

std::byte* Segments::find(int member, std::uint32_t segment, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  if (member == index_) {
    for (const auto& [start, own] : own_) {
      if (own.segment == segment) return const_cast<std::byte*>(start);
    }
    throw InternalError("internal error: a segment of this member is gone");
  }
  const auto key = std::pair(member, segment);
  while (!theirs_.contains(key)) {
    check(wires_ != nullptr, "a group that has ended looks for memory");
    const Wire& wire = *(*wires_)[static_cast<std::size_t>(member)];
    Wire::Parcel parcel = wire.receive(member, deadline);
    if (!parcel.descriptor.valid()) {  // its owner has let go of it, once all were done with it
      theirs_.erase(std::pair(member, static_cast<std::uint32_t>(parcel.key)));
      continue;
    }
    theirs_.emplace(std::pair(member, static_cast<std::uint32_t>(parcel.key)),
                    MemoryFile::attach(std::move(parcel.descriptor), parcel.value));
  }
  return theirs_.at(key).data();
}

}  // namespace troika::shm
