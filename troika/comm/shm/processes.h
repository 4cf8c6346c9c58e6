// The memory of the members' processes, by address (process_vm_readv(2)): tensors that lie nowhere
// special are read and written there without a copy between. Some systems do not allow it, as
// containers may; so the members agree on whether all of them can.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/shm/attach.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace troika::shm {

// "0": without. "1": also where ranks share cores.
inline constexpr const char* kByAddressVariable = "TROIKA_BY_ADDRESS";

class Processes {
 public:
  // `wires` by member; they stay where they are.
  explicit Processes(const std::vector<std::optional<Wire>>& wires) : wires_(wires) {}

  // `bytes` bytes of a member's process from its address `from`, and the other way round. Return 0
  // or an errno: ESRCH where the process has ended, EFAULT where there is no such memory.
  [[nodiscard]] int read(int member, std::uint64_t from, std::byte* to, std::size_t bytes) const;
  [[nodiscard]] int write(int member, std::uint64_t to, const std::byte* from,
                          std::size_t bytes) const;

 private:
  [[nodiscard]] const Wire& wire(int member) const {
    return *wires_[static_cast<std::size_t>(member)];
  }

  const std::vector<std::optional<Wire>>& wires_;
};

// What the system's settings (kernel.yama.ptrace_scope) have to say of it. What else forbids it,
// the members of a group find out by trying.
[[nodiscard]] bool settings_allow_addresses();

// Collective, once all members are attached: whether each can read the memory of every other's
// process, and so write it, and all are `willing`. Throws Late naming who does not come, Broken
// when a peer is gone.
[[nodiscard]] bool agree_on_addresses(const Attached& attached, int index, bool willing,
                                      const Deadline& deadline);

}  // namespace troika::shm
