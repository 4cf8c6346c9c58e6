#include <troika/base/error.h>
#include <troika/comm/shm/segments.h>

#include <algorithm>

namespace troika::shm {

std::shared_ptr<std::byte> Segments::allocate(const std::shared_ptr<Segments>& segments,
                                              std::size_t bytes) {
  auto memory = std::make_shared<MemoryFile>(MemoryFile::create(bytes));
  const std::lock_guard lock(segments->mutex_);
  const std::uint32_t segment = ++segments->allocated_;
  if (segments->connections_ == nullptr) return nullptr;
  const auto tell = [segments, segment](std::size_t size, int descriptor) {
    return segments->connections_ != nullptr &&
           std::ranges::count_if(
               *segments->connections_, [&](const std::optional<PeerConnection>& connection) {
                 return connection && !connection->send(segment, size, descriptor);
               }) == 0;
  };
  if (!tell(bytes, memory->descriptor())) {
    (void)tell(0, -1);  // those who could be told have it for nothing
    return nullptr;
  }
  // The mapping keeps the memory, and peers have descriptors of their own: a process with many
  // tensors would run out of them.
  memory->close_descriptor();
  std::byte* data = memory->data();
  segments->own_[data] = {bytes, segment};
  return {data, [memory, segments, tell](std::byte* start) {
            const std::lock_guard guard(segments->mutex_);
            (void)tell(0, -1);
            segments->own_.erase(start);
          }};
}

void Segments::disconnect() {
  const std::lock_guard lock(mutex_);
  connections_ = nullptr;
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
  std::unique_lock lock(mutex_);
  if (member == index_) {
    for (const auto& [start, own] : own_) {
      if (own.segment == segment) return const_cast<std::byte*>(start);
    }
    throw InternalError("internal error: a segment of this member is gone");
  }
  constexpr Seconds kTurn(0.01);  // where another thread was faster
  const Key key(member, segment);
  while (!theirs_.contains(key)) {
    check(connections_ != nullptr, "a group that has ended looks for memory");
    const bool is_there = take(member);
    if (theirs_.contains(key)) break;
    if (!is_there) throw Broken("a peer is gone");
    const PeerConnection& connection = *(*connections_)[static_cast<std::size_t>(member)];
    lock.unlock();
    const bool is_late = deadline.passed();
    (void)connection.await_message(Deadline::in(std::min(deadline.left(), kTurn)));
    lock.lock();
    if (is_late && !theirs_.contains(key)) throw TimedOut({member});
  }
  Theirs& found = theirs_.at(key);
  if (found.error) std::rethrow_exception(found.error);
  if (!std::exchange(found.is_known, true)) {
    for (const Key& each : std::exchange(released_, {})) {
      if (each != key) theirs_.erase(each);
    }
  }
  return found.memory.data();
}

bool Segments::take_messages(int member) {
  const std::lock_guard lock(mutex_);
  return connections_ != nullptr && take(member);
}

bool Segments::take(int member) {
  const PeerConnection& connection = *(*connections_)[static_cast<std::size_t>(member)];
  try {
    while (auto message = connection.try_receive()) {
      const Key key(member, static_cast<std::uint32_t>(message->key));
      if (!message->descriptor.valid() && !message->is_truncated) {
        released_.push_back(key);
        continue;
      }
      Theirs& theirs = theirs_[key];
      try {
        if (message->is_truncated) {
          throw StorageError("too many open files to map a peer's shared memory",
                             "raise the limit: ulimit -n");
        }
        theirs.memory = MemoryFile::attach(std::move(message->descriptor), message->value);
      } catch (const Error&) {
        theirs.error = std::current_exception();
      }
    }
  } catch (const Broken&) {
    return false;
  }
  return true;
}

}  // namespace troika::shm
