// Memory that client and server share, how they find each other, and what must not happen there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <troika/rpc/segments.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "unit/rpc/support.h"

namespace troika::test {
namespace {

using detail::OwnSegment;
using detail::PeerSegment;
using detail::SharedMemory;
namespace fs = std::filesystem;

fs::path file_of(const std::string& name) {
  return fs::path("/dev/shm") / ("troika-rpc-" + name);
}

bool fill(SharedMemory& memory, std::span<const std::byte> bytes) {
  const std::vector<std::span<const std::byte>> parts = {bytes};
  return memory.write(parts);
}

TEST(RpcSegment, PassesBytesBothWays) {
  const auto owner = OwnSegment::create();
  ASSERT_NE(owner, nullptr);
  const auto peer = PeerSegment::find(owner->name());
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(peer->memory(), nullptr);
  ASSERT_TRUE(owner->hand_over());
  ASSERT_NE(peer->memory(), nullptr);
  for (const std::size_t size : {3'000'001, 5'000'000, 100'000}) {
    const std::vector<std::byte> bytes = numbered(size);
    for (const bool forth : {true, false}) {
      SharedMemory& from = forth ? owner->memory() : *peer->memory();
      SharedMemory& to = forth ? *peer->memory() : owner->memory();
      std::vector<std::byte> back(size);
      EXPECT_TRUE(fill(from, bytes));
      EXPECT_TRUE(to.read(back));
      EXPECT_TRUE(back == bytes);
    }
  }
}

TEST(RpcSegment, IsForItsUserAloneAndNotFoundTwice) {
  const auto owner = OwnSegment::create();
  ASSERT_NE(owner, nullptr);
  struct stat facts {};
  ASSERT_EQ(stat(file_of(owner->name()).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  EXPECT_FALSE(OwnSegment::create()->hand_over());  // nobody has come
  const auto peer = PeerSegment::find(owner->name());
  EXPECT_TRUE(owner->hand_over());
  EXPECT_FALSE(fs::exists(file_of(owner->name())));
  EXPECT_EQ(PeerSegment::find(owner->name()), nullptr);
}

TEST(RpcSegment, IsNoOtherFile) {
  const std::string name(detail::kSegmentNameBytes, 'e');
  std::ofstream(file_of(name)) << "a file";
  EXPECT_EQ(PeerSegment::find(name), nullptr);
  fs::remove(file_of(name));
  EXPECT_EQ(PeerSegment::find(name), nullptr);
  EXPECT_EQ(PeerSegment::find("../" + name.substr(3)), nullptr);
}

TEST(RpcSegment, CannotBeShortened) {
  const auto memory = SharedMemory::create();
  ASSERT_NE(memory, nullptr);
  std::vector<std::byte> bytes = numbered(1'000'000);
  EXPECT_TRUE(fill(*memory, bytes));
  EXPECT_NE(ftruncate(memory->descriptor(), 10), 0);
  EXPECT_TRUE(memory->read(bytes));
  bytes.push_back({});
  EXPECT_FALSE(memory->read(bytes));
}

TEST(RpcSegment, IsRefusedIfItCouldBeShortened) {
  UniqueFd plain(memfd_create("a test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(plain.get(), 1'000'000), 0);
  EXPECT_EQ(SharedMemory::adopt(std::move(plain)), nullptr);
  EXPECT_EQ(SharedMemory::adopt(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))), nullptr);
  UniqueFd endless(memfd_create("a test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(endless.get(), off_t{1} << 40), 0);
  ASSERT_EQ(fcntl(endless.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const auto memory = SharedMemory::adopt(std::move(endless));
  ASSERT_NE(memory, nullptr);
  std::vector<std::byte> bytes(100'000);
  EXPECT_FALSE(memory->read(bytes));
}

// A process may write files of a certain size; a signal ends it beyond.
TEST(RpcSegment, KeepsToTheLimitOfTheProcess) {
  const auto memory = SharedMemory::create();
  ASSERT_NE(memory, nullptr);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1'000'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_FALSE(fill(*memory, numbered(1'000'001)));
  EXPECT_TRUE(fill(*memory, numbered(1'000'000)));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

// Binds a socket as a process does that is killed before its segment is found.
void leave_behind(const std::string& name) {
  const UniqueFd left(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, file_of(name).c_str());
  ASSERT_EQ(bind(left.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

void make_old(const std::string& name) {
  const std::array<timespec, 2> hour_ago = {timespec{time(nullptr) - 3600, 0},
                                            timespec{time(nullptr) - 3600, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, file_of(name).c_str(), hour_ago.data(), 0), 0);
}

TEST(RpcSegment, OfProcessesThatWereKilledAreRemoved) {
  const std::string old(detail::kSegmentNameBytes, 'd');
  const std::string fresh(detail::kSegmentNameBytes, 'f');
  for (const std::string& name : {old, fresh}) {
    fs::remove(file_of(name));
    leave_behind(name);
  }
  const auto used = OwnSegment::create();
  ASSERT_NE(used, nullptr);
  make_old(old);
  make_old(used->name());
  const auto next = OwnSegment::create();
  EXPECT_FALSE(fs::exists(file_of(old)));
  EXPECT_TRUE(fs::exists(file_of(fresh)));  // its owner may be about to listen
  EXPECT_TRUE(fs::exists(file_of(used->name())));
  fs::remove(file_of(fresh));
}

TEST(RpcSegments, AreUsedAgain) {
  detail::ClientSegments segments;
  int asked = 0;
  std::vector<std::unique_ptr<PeerSegment>> peers;
  const auto attach = [&](const std::string& name) {
    ++asked;
    peers.push_back(PeerSegment::find(name));
    return peers.back() != nullptr;
  };
  auto first = segments.take(attach);
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(fs::exists(file_of(first->name())));
  const OwnSegment* const known = first.get();
  segments.give_back(std::move(first));
  first = segments.take(attach);
  EXPECT_EQ(first.get(), known);
  EXPECT_NE(segments.take(attach), nullptr);  // the first is in use
  EXPECT_EQ(asked, 2);
  segments.give_back(std::move(first));
  segments.forget();
  EXPECT_NE(segments.take(attach), nullptr);
  EXPECT_EQ(asked, 3);
}

TEST(RpcSegments, AreNotOfferedAgainToAServerElsewhere) {
  detail::ClientSegments segments;
  int asked = 0;
  const auto attach = [&](const std::string& name) {
    ++asked;
    EXPECT_TRUE(fs::exists(file_of(name)));
    return false;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(segments.take(attach), nullptr);
  EXPECT_EQ(asked, 1);
  segments.forget();
  EXPECT_EQ(segments.take(attach), nullptr);
  EXPECT_EQ(asked, 2);
}

TEST(RpcSegments, OfClientsThatHaveGoneAreDropped) {
  detail::ServerSegments known;
  auto first = OwnSegment::create();
  const auto second = OwnSegment::create();
  ASSERT_TRUE(first && second);
  const std::string name = first->name();
  EXPECT_TRUE(known.attach(name));
  EXPECT_EQ(known.find(name), nullptr);  // it is not handed over yet
  EXPECT_TRUE(first->hand_over());
  EXPECT_NE(known.find(name), nullptr);
  first.reset();
  EXPECT_TRUE(known.attach(second->name()));
  EXPECT_TRUE(second->hand_over());
  EXPECT_EQ(known.find(name), nullptr);
  EXPECT_NE(known.find(second->name()), nullptr);
}

}  // namespace
}  // namespace troika::test
