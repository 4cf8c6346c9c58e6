#include <gmock/gmock.h>

#include <random>

#include "members.h"

namespace troika::shm::testing {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(int from, int to, std::size_t size, std::uint64_t round) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 13 + static_cast<std::size_t>(from * 5 + to * 3) + round);
  }
  return bytes;
}

TEST(Mailbox, CarriesMessagesInOrderBothWaysAtOnce) {
  Members members(2);
  const std::vector<std::size_t> sizes = {1, 0x10000, 3'000'001, 8, 700'000};
  members.run([&](int member, ShmGroup& group) {
    Mailbox mailbox(group);
    const int peer = 1 - member;
    const auto batch = std::make_shared<Mailbox::Batch>();
    std::vector<Bytes> sent, received;
    for (const std::size_t size : sizes) {
      sent.push_back(bytes_of(member, peer, size, size));
      received.emplace_back(size);
    }
    for (Bytes& bytes : sent) mailbox.send(batch, peer, bytes.data(), bytes.size());
    for (Bytes& bytes : received) mailbox.receive(batch, peer, bytes.data(), bytes.size());
    mailbox.wait(batch, soon());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(received[i], bytes_of(peer, member, sizes[i], sizes[i])) << i;
    }
  });
}

TEST(Mailbox, Stress) {
  Shape shape;
  shape.channel_bytes = 4096;
  Members members(4, Seconds(0), shape);
  members.run([&](int member, ShmGroup& group) {
    Mailbox mailbox(group);
    std::mt19937 shared(3);
    for (std::uint64_t round = 0; round < 300; ++round) {
      const std::size_t size = shared() % 20000 + 1;
      const auto batch = std::make_shared<Mailbox::Batch>();
      std::vector<Bytes> sent(4), received(4);
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == member) continue;
        const auto i = static_cast<std::size_t>(peer);
        sent[i] = bytes_of(member, peer, size, round);
        received[i].resize(size);
        mailbox.receive(batch, peer, received[i].data(), size);
        mailbox.send(batch, peer, sent[i].data(), size);
      }
      mailbox.wait(batch, soon());
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == member) continue;
        ASSERT_EQ(received[static_cast<std::size_t>(peer)], bytes_of(peer, member, size, round));
      }
    }
  });
}

TEST(Mailbox, NamesASizeThatDiffers) {
  Members members(2);
  members.run([&](int member, ShmGroup& group) {
    Mailbox mailbox(group);
    Bytes bytes(member == 0 ? 10 : 20);
    const auto batch = std::make_shared<Mailbox::Batch>();
    if (member == 0) return mailbox.send(batch, 1, bytes.data(), bytes.size());
    mailbox.receive(batch, 0, bytes.data(), bytes.size());
    try {
      mailbox.wait(batch, soon());
      ADD_FAILURE();
    } catch (const WrongSize& wrong) {
      EXPECT_EQ(wrong.member(), 0);
      EXPECT_EQ(wrong.theirs(), 10u);
      EXPECT_EQ(wrong.ours(), 20u);
    }
  });
}

}  // namespace
}  // namespace troika::shm::testing
