// How members find each other's memory, and what they make of strangers, of too little memory, and
// of the end of a peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/shm/segments.h>
#include <troika/observe/machine.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

namespace troika::shm {
namespace {

using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::in(Seconds(20));
}

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool is_told(pollfd end) {
  return poll(&end, 1, 0) > 0;
}

// Three members in threads, each with its listener.
std::vector<Attached> attach_three(const Shape& shape) {
  std::vector<Listener> listeners(3);
  std::vector<std::string> names;
  for (const Listener& listener : listeners) names.push_back(listener.name());
  std::vector<Attached> attached(3);
  std::vector<std::thread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&, index] {
      attached[static_cast<std::size_t>(index)] =
          attach(listeners[static_cast<std::size_t>(index)], names, index, shape, soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return attached;
}

TEST(Attach, GivesEveryMemberTheSameControlBlocks) {
  Shape shape;
  shape.members = 3;
  std::vector<Attached> all = attach_three(shape);
  for (std::size_t member = 0; member < 3; ++member) {
    all[member].control_blocks[member].set_abort_reason("I am " + std::to_string(member));
  }
  for (const Attached& attached : all) {
    for (std::size_t member = 0; member < 3; ++member) {
      EXPECT_EQ(attached.control_blocks[member].reason(), "I am " + std::to_string(member));
    }
  }
}

TEST(Attach, NamesWhoDoesNotCome) {
  const Listener own, absent;
  Shape shape;
  shape.members = 2;
  try {
    (void)attach(own, {own.name(), absent.name()}, 0, shape, Deadline::in(Seconds(0.05)));
    ADD_FAILURE();
  } catch (const TimedOut& late) {
    EXPECT_THAT(late.missing(), ::testing::ElementsAre(1));
  }
}

TEST(Attach, FindsNoListenerThatIsNotThere) {
  EXPECT_FALSE(connect_to_listener("troika-no-listener-has-this-name").valid());
}

TEST(PeerConnection, CarriesDescriptorsAndMessagesInOrder) {
  auto [one, other] = socket_pair();
  const PeerConnection sender(std::move(one)), receiver(std::move(other));
  const MemoryFile memory = MemoryFile::create(4096);
  std::memcpy(memory.data(), "shared", 6);
  ASSERT_TRUE(sender.send(7, 4096, memory.descriptor()));
  ASSERT_TRUE(sender.send(8, 0, -1));
  PeerConnection::FdMessage message = receiver.receive(0, soon());
  EXPECT_EQ(message.key, 7u);
  const MemoryFile same = MemoryFile::attach(std::move(message.descriptor), message.value);
  EXPECT_EQ(std::memcmp(same.data(), "shared", 6), 0);
  message = receiver.receive(0, soon());
  EXPECT_EQ(message.key, 8u);
  EXPECT_FALSE(message.descriptor.valid());
  EXPECT_THROW((void)receiver.receive(0, Deadline::in(Seconds(0.01))), TimedOut);
}

// Where a peer's process cannot be watched, the end of its connection tells; what it sends does
// not.
TEST(PeerConnection, TellsAMessageFromAnExit) {
  auto [one, other] = socket_pair();
  const PeerConnection watching(std::move(one), PeerConnection::Watch::kConnection);
  {
    const PeerConnection peer(std::move(other));
    ASSERT_TRUE(peer.send(1, 0, -1));
    EXPECT_FALSE(is_told(watching.exit_fd()));
  }
  EXPECT_TRUE(is_told(watching.exit_fd()));
}

TEST(PeerConnection, WatchesTheProcessOfItsPeer) {
  auto [one, other] = socket_pair();
  const PeerConnection connection(std::move(one));
  EXPECT_EQ(connection.pid(), getpid());
  EXPECT_FALSE(is_told(connection.exit_fd()));
}

// A child that connects to the listener, and a child of its own that has the same end of the
// connection and says so. Both go when this process closes the other end.
pid_t fork_caller(const Listener& listener) {
  const pid_t child = fork();
  if (child != 0) return child;
  const PeerConnection connection(connect_to_listener(listener.name()));
  const pid_t grandchild = fork();
  if (grandchild == 0) (void)connection.send(7, 0, -1);
  (void)connection.await_message(soon());
  _exit(grandchild < 0 ? 1 : 0);
}

// Through the process, not the connection: a helper that the peer has started may keep that open.
TEST(PeerConnection, TellsOfAnExitThatLeavesTheConnectionOpen) {
  const Listener listener;
  const pid_t child = fork_caller(listener);
  ASSERT_GT(child, 0);
  UniqueFd socket = listener.accept(soon());
  const PeerConnection duplicate(UniqueFd(dup(socket.get())), PeerConnection::Watch::kConnection);
  const PeerConnection connection(std::move(socket));
  EXPECT_EQ(connection.receive(0, soon()).key, 7u);  // the grandchild is there
  EXPECT_EQ(connection.pid(), child);
  EXPECT_TRUE(connection.watches_process());
  EXPECT_FALSE(is_told(connection.exit_fd()));
  EXPECT_FALSE(connection.has_ended());

  ASSERT_EQ(kill(child, SIGKILL), 0);
  pollfd exit_event = connection.exit_fd();
  EXPECT_EQ(poll(&exit_event, 1, 10'000), 1);
  EXPECT_TRUE(connection.has_ended());
  EXPECT_FALSE(is_told(duplicate.exit_fd()));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// Before the kernel ends processes to make some.
TEST(MemoryFile, SaysSoWhereThereIsNoRoom) {
  const auto available = available_memory();
  ASSERT_TRUE(available);
  for (const std::size_t bytes : {std::size_t{1} << 55, *available + (std::size_t{4} << 30)}) {
    try {
      (void)MemoryFile::create(bytes);
      ADD_FAILURE() << bytes;
    } catch (const StorageError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("cannot reserve " + format_bytes(bytes) + " of shared memory: "));
      EXPECT_THAT(error.what(), HasSubstr(" are left on this host, or in this container"));
    }
  }
}

TEST(MemoryFile, IsReservedWholeAndSealed) {
  const MemoryFile memory = MemoryFile::create(std::size_t{1} << 20);
  struct stat facts {};
  ASSERT_EQ(fstat(memory.descriptor(), &facts), 0);
  EXPECT_GE(facts.st_blocks * 512, 1 << 20);
  EXPECT_NE(ftruncate(memory.descriptor(), 4096), 0);
}

// Its pages are there from the start, so they lie where its maker runs, whichever process is the
// first to write to them.
TEST(MemoryFile, TakesNoPageWhenItIsWritten) {
  const MemoryFile memory = MemoryFile::create((std::size_t{3} << 20) + 100);
  struct stat before {
  }, after{};
  ASSERT_EQ(fstat(memory.descriptor(), &before), 0);
  std::memset(memory.data(), 1, memory.size());
  ASSERT_EQ(fstat(memory.descriptor(), &after), 0);
  EXPECT_EQ(after.st_blocks, before.st_blocks);
}

// The bytes of this process that lie in huge pages of memory files.
long kilobytes_in_huge_pages() {
  std::ifstream facts("/proc/self/smaps_rollup");
  for (std::string name, rest; facts >> name; std::getline(facts, rest)) {
    if (name == "ShmemPmdMapped:") return std::stol(rest);
  }
  return -1;
}

TEST(MemoryFile, TakesHugePagesWhereTheSystemHasThemForMemoryFiles) {
  std::string choice;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), choice);
  if (choice.find("[never]") != std::string::npos || choice.find("[deny]") != std::string::npos ||
      choice.empty()) {
    GTEST_SKIP() << "transparent_hugepage/shmem_enabled is '" << choice << "'";
  }
  const long before = kilobytes_in_huge_pages();
  if (before < 0) GTEST_SKIP() << "/proc/self/smaps_rollup does not tell";
  const MemoryFile memory = MemoryFile::create(std::size_t{64} << 20);
  std::memset(memory.data(), 1, memory.size());
  EXPECT_GT(kilobytes_in_huge_pages(), before);
}

TEST(MemoryFile, RefusesWhatAPeerMayShrinkOrHasCutShort) {
  UniqueFd open(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open.get(), 4096), 0);
  EXPECT_THROW((void)MemoryFile::attach(std::move(open), 4096), DataError);
  const MemoryFile small = MemoryFile::create(4096);
  EXPECT_THROW((void)MemoryFile::attach(UniqueFd(dup(small.descriptor())), 8192), DataError);
}

// Member 0's segments as member 1 sees them.
class SegmentsOfTwo : public ::testing::Test {
 protected:
  SegmentsOfTwo() {
    auto [one, other] = socket_pair();
    connections_[0].resize(2);
    connections_[1].resize(2);
    connections_[0][1].emplace(std::move(one));
    connections_[1][0].emplace(std::move(other));
  }
  std::vector<std::optional<PeerConnection>> connections_[2];
  std::shared_ptr<Segments> own_ = std::make_shared<Segments>(connections_[0], 0);
  Segments theirs_{connections_[1], 1};
};

TEST_F(SegmentsOfTwo, AreFoundByTheirNumber) {
  const auto first = Segments::allocate(own_, 4096), second = Segments::allocate(own_, 8192);
  std::memcpy(second.get(), "second", 6);
  EXPECT_EQ(std::memcmp(theirs_.find(0, 2, soon()), "second", 6), 0);
  const auto location = own_->locate(second.get() + 100, 1000);
  ASSERT_TRUE(location);
  EXPECT_EQ(location->segment, 2u);
  EXPECT_EQ(location->offset, 100u);
  EXPECT_FALSE(own_->locate(second.get() + 8000, 1000));
  EXPECT_THROW((void)theirs_.find(0, 3, Deadline::in(Seconds(0.01))), TimedOut);
}

TEST_F(SegmentsOfTwo, AreLetGoOf) {
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    int count = 0;
    while (std::getline(maps, line)) count += line.find("/memfd:troika") != std::string::npos;
    return count;
  };
  const int before = mapped();
  for (std::uint32_t i = 1; i <= 20; ++i) {
    const auto arena = Segments::allocate(own_, 4096);
    std::memset(arena.get(), static_cast<int>(i), 4096);
    EXPECT_EQ(*theirs_.find(0, i, soon()), static_cast<std::byte>(i));
  }
  EXPECT_LE(mapped(), before + 1);
}

// More than the connection holds, and than a process may have open: the peer takes what it is told
// before an operation names any.
TEST_F(SegmentsOfTwo, MayBeMany) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  std::vector<std::shared_ptr<std::byte>> arenas;
  for (std::uint32_t i = 1; i <= 1500; ++i) {
    arenas.push_back(Segments::allocate(own_, 4096));
    ASSERT_NE(arenas.back(), nullptr) << i;
    *arenas.back() = static_cast<std::byte>(i);
    if (i % 100 == 0) {
      EXPECT_TRUE(theirs_.take_messages(0));
    }
  }
  for (std::uint32_t i = 1; i <= arenas.size(); ++i) {
    EXPECT_EQ(*theirs_.find(0, i, soon()), static_cast<std::byte>(i));
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(SegmentsOfTwo, AreNotToldToOneThatIsGone) {
  connections_[1].clear();
  EXPECT_EQ(Segments::allocate(own_, 4096), nullptr);
}

TEST_F(SegmentsOfTwo, OutliveTheirConnection) {
  auto arena = Segments::allocate(own_, 4096);
  own_->disconnect();
  connections_[0].clear();
  *arena = std::byte{1};
  arena.reset();
  EXPECT_EQ(Segments::allocate(own_, 4096), nullptr);
}

}  // namespace
}  // namespace troika::shm
