#include <troika/comm/shm/mailbox.h>

#include <algorithm>
#include <cstring>

namespace troika::shm {
namespace {

// In front of each message.
constexpr std::size_t kHeader = sizeof(std::uint64_t);

}  // namespace

Mailbox::Mailbox(Party& party) : party_(party), capacity_(party.shape().channel_bytes) {
  for (int member = 0; member < party_.size(); ++member) {
    const Board &own = party_.own(), &theirs = party_.board(member);
    outgoing_.push_back({&own.channel(member), own.channel_data(member), {}});
    incoming_.push_back({&theirs.channel(party_.index()), theirs.channel_data(party_.index()), {}});
  }
}

void Mailbox::send(const std::shared_ptr<Batch>& batch, int to, const std::byte* data,
                   std::size_t bytes) {
  batch->left_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  // A message that is sent is only read.
  outgoing_[static_cast<std::size_t>(to)].queue.push_back(
      {batch, const_cast<std::byte*>(data), bytes});
  if (send_some(to)) party_.tell(to);
}

void Mailbox::receive(const std::shared_ptr<Batch>& batch, int from, std::byte* data,
                      std::size_t bytes) {
  batch->left_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  incoming_[static_cast<std::size_t>(from)].queue.push_back({batch, data, bytes});
}

void Mailbox::progress() {
  const std::lock_guard lock(mutex_);
  for (int member = 0; member < party_.size(); ++member) {
    const bool sent = send_some(member), received = receive_some(member);
    if (sent || received) party_.tell(member);
  }
}

bool Mailbox::is_out_of_hand(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const Message& message) { return message.batch == batch; };
  const auto fits = [&](const Way& way) {
    std::uint64_t room = 0;
    for (const Message& message : way.queue) {
      room += message.bytes - message.moved + (message.announced ? 0 : kHeader);
    }
    return room <= capacity_;
  };
  return std::ranges::none_of(
             outgoing_, [&](const Way& way) { return std::ranges::any_of(way.queue, waits); }) &&
         std::ranges::all_of(incoming_, fits);
}

bool Mailbox::send_some(int to) {
  Way& way = outgoing_[static_cast<std::size_t>(to)];
  bool moved = false;
  while (!way.queue.empty()) {
    Message& message = way.queue.front();
    const std::uint64_t written = way.channel->written.load();
    const std::uint64_t free = capacity_ - (written - way.channel->read.load());
    if (!message.announced) {
      if (free < kHeader) break;
      copy_in(way, written, reinterpret_cast<const std::byte*>(&message.bytes), kHeader);
      way.channel->written.store(written + kHeader);
      message.announced = moved = true;
      continue;
    }
    const std::uint64_t size = std::min(free, message.bytes - message.moved);
    if (size == 0 && message.moved < message.bytes) break;
    copy_in(way, written, message.data + message.moved, size);
    message.moved += size;
    way.channel->written.store(written + size);
    moved = true;
    if (message.moved < message.bytes) continue;
    message.batch->left_.fetch_sub(1);
    way.queue.pop_front();
  }
  return moved;
}

bool Mailbox::receive_some(int from) {
  Way& way = incoming_[static_cast<std::size_t>(from)];
  bool moved = false;
  while (!way.queue.empty()) {
    Message& message = way.queue.front();
    const std::uint64_t read = way.channel->read.load();
    const std::uint64_t there = way.channel->written.load() - read;
    if (!message.announced) {
      if (there < kHeader) break;
      std::uint64_t theirs = 0;
      copy_out(way, read, reinterpret_cast<std::byte*>(&theirs), kHeader);
      if (theirs != message.bytes) {
        throw WrongSize(from, theirs, message.bytes, message.batch->label_);
      }
      way.channel->read.store(read + kHeader);
      message.announced = moved = true;
      continue;
    }
    const std::uint64_t size = std::min(there, message.bytes - message.moved);
    if (size == 0 && message.moved < message.bytes) break;
    copy_out(way, read, message.data + message.moved, size);
    message.moved += size;
    way.channel->read.store(read + size);
    moved = true;
    if (message.moved < message.bytes) continue;
    message.batch->left_.fetch_sub(1);
    way.queue.pop_front();
  }
  return moved;
}

void Mailbox::wait(const std::shared_ptr<Batch>& batch, const Deadline& deadline) {
  const auto ready = [&] {
    if (batch->done()) return true;
    progress();
    return batch->done();
  };
  party_.wait(
      ready, [&] { return missing(batch); }, deadline);
}

bool Mailbox::is_over(const std::shared_ptr<Batch>& batch, const Deadline& deadline) {
  return party_.is_over([&] { return missing(batch); }, deadline);
}

// Those that it waits for.
std::vector<int> Mailbox::missing(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const Message& message) { return message.batch == batch; };
  std::vector<int> members;
  for (int member = 0; member < party_.size(); ++member) {
    const auto& in = incoming_[static_cast<std::size_t>(member)].queue;
    const auto& out = outgoing_[static_cast<std::size_t>(member)].queue;
    if (std::ranges::any_of(in, waits) || std::ranges::any_of(out, waits)) {
      members.push_back(member);
    }
  }
  return members;
}

void Mailbox::copy_in(const Way& way, std::uint64_t at, const std::byte* from,
                      std::size_t bytes) const {
  const std::size_t start = at % capacity_, first = std::min(bytes, capacity_ - start);
  std::memcpy(way.ring + start, from, first);
  std::memcpy(way.ring, from + first, bytes - first);
}

void Mailbox::copy_out(const Way& way, std::uint64_t at, std::byte* to, std::size_t bytes) const {
  const std::size_t start = at % capacity_, first = std::min(bytes, capacity_ - start);
  std::memcpy(to, way.ring + start, first);
  std::memcpy(to + first, way.ring, bytes - first);
}

}  // namespace troika::shm
