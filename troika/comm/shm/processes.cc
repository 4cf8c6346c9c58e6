#include <troika/base/error.h>
#include <troika/comm/shm/party.h>
#include <troika/comm/shm/processes.h>

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <thread>

namespace troika::shm {
namespace {

// In another process, `start` is an address that means nothing here.
iovec piece(std::uint64_t start, std::size_t bytes) {
  return {reinterpret_cast<void*>(start), bytes};  // NOLINT(performance-no-int-to-ptr)
}

iovec piece(const std::byte* start, std::size_t bytes) {
  return {const_cast<std::byte*>(start), bytes};
}

// What less than all is, too: memory ends in the middle.
int result(ssize_t moved, std::size_t bytes) {
  if (moved < 0) return errno;
  return static_cast<std::size_t>(moved) == bytes ? 0 : EFAULT;
}

// Waits until `there` holds for the board of every member.
void await(const Attached& attached, const Deadline& deadline,
           const std::function<bool(const Board& board)>& there) {
  constexpr Seconds kNap(50e-6);
  for (std::size_t member = 0; member < attached.boards.size(); ++member) {
    while (!there(attached.boards[member])) {
      if (attached.wires[member] && attached.wires[member]->has_ended()) {
        if (there(attached.boards[member])) break;  // the last that it did
        throw Broken("a peer is gone");
      }
      if (deadline.passed()) throw Late({static_cast<int>(member)});
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace

int Processes::read(int member, std::uint64_t from, std::byte* to, std::size_t bytes) const {
  const iovec here = piece(to, bytes), there = piece(from, bytes);
  return result(process_vm_readv(wire(member).pid(), &here, 1, &there, 1, 0), bytes);
}

int Processes::write(int member, std::uint64_t to, const std::byte* from, std::size_t bytes) const {
  // The number of a process that has ended may be another's by now.
  if (wire(member).has_ended()) return ESRCH;
  const iovec here = piece(from, bytes), there = piece(to, bytes);
  return result(process_vm_writev(wire(member).pid(), &here, 1, &there, 1, 0), bytes);
}

bool settings_allow_addresses() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope < 1 || geteuid() == 0;
}

bool agree_on_addresses(const Attached& attached, int index, bool willing,
                        const Deadline& deadline) {
  // A word that only this process has, while the others look for it.
  std::uint64_t word = 0;
  check(getrandom(&word, sizeof(word), 0) == sizeof(word), "no random bytes");
  const std::atomic_ref<std::uint64_t> kept(word);  // read by others: it stays in memory
  const Board& own = attached.boards[static_cast<std::size_t>(index)];
  own.show_word(kept.load(), reinterpret_cast<std::uint64_t>(&word));
  await(attached, deadline, [](const Board& board) { return board.word_address() != 0; });
  const Processes processes(attached.wires);
  bool all = willing;
  for (int member = 0; member < static_cast<int>(attached.boards.size()) && all; ++member) {
    if (member == index) continue;
    const Board& peer = attached.boards[static_cast<std::size_t>(member)];
    const Wire& wire = *attached.wires[static_cast<std::size_t>(member)];
    std::uint64_t found = 0;
    all = wire.watches_process() &&
          processes.read(member, peer.word_address(), reinterpret_cast<std::byte*>(&found),
                         sizeof(found)) == 0 &&
          found == peer.word();
  }
  own.reach().store(all ? Reach::kAll : Reach::kSome);
  await(attached, deadline,
        [](const Board& board) { return board.reach().load() != Reach::kUnknown; });
  for (const Board& board : attached.boards) all = all && board.reach().load() == Reach::kAll;
  return all;
}

}  // namespace troika::shm
