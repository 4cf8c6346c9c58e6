#include <troika/comm/shm/mailbox.h>

#include <algorithm>
#include <cstring>

namespace troika::shm {
namespace {

// In front of each message.
constexpr std::size_t kHeader = sizeof(std::uint64_t);

}  // namespace

Mailbox::Mailbox(ShmGroup& group) : group_(group), capacity_(group.shape().channel_bytes) {
  for (int member = 0; member < group_.size(); ++member) {
    const ControlBlock &own = group_.own(), &theirs = group_.control_block(member);
    outgoing_.push_back({&own.channel(member), own.channel_data(member), {}});
    incoming_.push_back({&theirs.channel(group_.index()), theirs.channel_data(group_.index()), {}});
  }
}

void Mailbox::send(const std::shared_ptr<Batch>& batch, int to, const std::byte* data,
                   std::size_t bytes) {
  batch->left_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  // A message that is sent is only read.
  outgoing_[static_cast<std::size_t>(to)].queue.push_back(
      {batch, const_cast<std::byte*>(data), bytes});
  if (send_some(to)) group_.notify(to);
}

void Mailbox::receive(const std::shared_ptr<Batch>& batch, int from, std::byte* data,
                      std::size_t bytes) {
  batch->left_.fetch_add(1);
  const std::lock_guard lock(mutex_);
  incoming_[static_cast<std::size_t>(from)].queue.push_back({batch, data, bytes});
}

void Mailbox::progress() {
  const std::lock_guard lock(mutex_);
  for (int member = 0; member < group_.size(); ++member) {
    const bool sent = send_some(member), received = receive_some(member);
    if (sent || received) group_.notify(member);
  }
}

bool Mailbox::is_buffered(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const Message& message) { return message.batch == batch; };
  const auto fits = [&](const ChannelQueue& channel) {
    std::uint64_t room = 0;
    for (const Message& message : channel.queue) {
      room += message.bytes - message.moved + (message.announced ? 0 : kHeader);
    }
    return room <= capacity_;
  };
  return std::ranges::none_of(outgoing_,
                              [&](const ChannelQueue& channel) {
                                return std::ranges::any_of(channel.queue, waits);
                              }) &&
         std::ranges::all_of(incoming_, fits);
}

bool Mailbox::send_some(int to) {
  ChannelQueue& channel = outgoing_[static_cast<std::size_t>(to)];
  bool moved = false;
  while (!channel.queue.empty()) {
    Message& message = channel.queue.front();
    const std::uint64_t written = channel.positions->written.load();
    const std::uint64_t free = capacity_ - (written - channel.positions->read.load());
    if (!message.announced) {
      // A size is never cut in two: the receiver compares it before it takes a byte.
      if (free < kHeader) break;
      copy_in(channel, written, reinterpret_cast<const std::byte*>(&message.bytes), kHeader);
      // Behind the bytes: the receiver reads as far as this position says.
      channel.positions->written.store(written + kHeader);
      message.announced = moved = true;
      continue;
    }
    const std::uint64_t size = std::min(free, message.bytes - message.moved);
    if (size == 0 && message.moved < message.bytes) break;
    copy_in(channel, written, message.data + message.moved, size);
    message.moved += size;
    channel.positions->written.store(written + size);
    moved = true;
    if (message.moved < message.bytes) continue;
    message.batch->left_.fetch_sub(1);
    channel.queue.pop_front();
  }
  return moved;
}

bool Mailbox::receive_some(int from) {
  ChannelQueue& channel = incoming_[static_cast<std::size_t>(from)];
  bool moved = false;
  while (!channel.queue.empty()) {
    Message& message = channel.queue.front();
    const std::uint64_t read = channel.positions->read.load();
    const std::uint64_t there = channel.positions->written.load() - read;
    if (!message.announced) {
      if (there < kHeader) break;
      std::uint64_t theirs = 0;
      copy_out(channel, read, reinterpret_cast<std::byte*>(&theirs), kHeader);
      if (theirs != message.bytes) {
        throw WrongSize(from, theirs, message.bytes, message.batch->label_);
      }
      channel.positions->read.store(read + kHeader);
      message.announced = moved = true;
      continue;
    }
    const std::uint64_t size = std::min(there, message.bytes - message.moved);
    if (size == 0 && message.moved < message.bytes) break;
    copy_out(channel, read, message.data + message.moved, size);
    message.moved += size;
    // Behind the copy: the sender writes over what this position gives back.
    channel.positions->read.store(read + size);
    moved = true;
    if (message.moved < message.bytes) continue;
    message.batch->left_.fetch_sub(1);
    channel.queue.pop_front();
  }
  return moved;
}

void Mailbox::wait(const std::shared_ptr<Batch>& batch, const Deadline& deadline) {
  const auto ready = [&] {
    if (batch->done()) return true;
    progress();
    return batch->done();
  };
  group_.wait(
      ready, [&] { return missing(batch); }, deadline);
}

bool Mailbox::is_over(const std::shared_ptr<Batch>& batch, const Deadline& deadline) {
  return group_.is_over([&] { return missing(batch); }, deadline);
}

// Those that it waits for.
std::vector<int> Mailbox::missing(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const Message& message) { return message.batch == batch; };
  std::vector<int> members;
  for (int member = 0; member < group_.size(); ++member) {
    const auto& in = incoming_[static_cast<std::size_t>(member)].queue;
    const auto& out = outgoing_[static_cast<std::size_t>(member)].queue;
    if (std::ranges::any_of(in, waits) || std::ranges::any_of(out, waits)) {
      members.push_back(member);
    }
  }
  return members;
}

void Mailbox::copy_in(const ChannelQueue& channel, std::uint64_t at, const std::byte* from,
                      std::size_t bytes) const {
  const std::size_t start = at % capacity_, first = std::min(bytes, capacity_ - start);
  std::memcpy(channel.ring + start, from, first);
  std::memcpy(channel.ring, from + first, bytes - first);
}

void Mailbox::copy_out(const ChannelQueue& channel, std::uint64_t at, std::byte* to,
                       std::size_t bytes) const {
  const std::size_t start = at % capacity_, first = std::min(bytes, capacity_ - start);
  std::memcpy(to, channel.ring + start, first);
  std::memcpy(to + first, channel.ring, bytes - first);
}

}  // namespace troika::shm
