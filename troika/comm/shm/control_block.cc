#include <troika/comm/shm/control_block.h>

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace troika::shm {
namespace {

constexpr std::size_t kPage = 4096;
// What is copied from or to the slots and windows mostly begins at a page, or 64 bytes behind one.
// Were they to begin so, too, loads would be taken for loads of what has just been stored, whose
// addresses have the same low 12 bits.
constexpr std::size_t kOffPage = kPage / 2 + kCacheLine;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Whether this process takes part in fence_everywhere(), and may call it.
bool takes_fences() {
  static const bool registered =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 &&
      syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
  return registered;
}

}  // namespace

void fence_everywhere() {
  syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

static_assert(sizeof(Operation) == 4 * kCacheLine);

ControlBlock::Layout::Layout(const Shape& shape)
    : operations(kPage),
      slots(operations + whole_pages(Shape::kRing * sizeof(Operation)) + kOffPage),
      large_slots(slots + whole_pages(Shape::kRing * shape.slot_bytes)),
      windows(large_slots + whole_pages(Shape::kLargeSlots * shape.large_slot_bytes)),
      window_stride(whole_pages(shape.window_bytes)),
      channels(windows + 4 * window_stride),
      channel_data(channels +
                   whole_pages(static_cast<std::size_t>(shape.members) * sizeof(Channel))),
      channel_stride(whole_pages(shape.channel_bytes)),
      end(channel_data + static_cast<std::size_t>(shape.members) * channel_stride) {}

ControlBlock::ControlBlock(MemoryFile memory, const Shape& shape)
    : memory_(std::make_shared<MemoryFile>(std::move(memory))),
      shape_(shape),
      layout_(shape),
      start_(memory_->data()) {}

ControlBlock ControlBlock::create(const Shape& shape, Fences fences) {
  static_assert(sizeof(Head) <= kPage);
  ControlBlock control_block(MemoryFile::create(Layout(shape).end), shape);
  // Zeroed memory: every counter starts at 0. The objects begin their lives here.
  new (control_block.start_) Head{};
  control_block.head().fences =
      fences == Fences::kOnWait && takes_fences() ? fences : Fences::kOnPublish;
  for (std::uint64_t number = 0; number < Shape::kRing; ++number) {
    new (&control_block.operation(number)) Operation{};
  }
  for (int member = 0; member < shape.members; ++member)
    new (&control_block.channel(member)) Channel{};
  return control_block;
}

ControlBlock ControlBlock::attach(UniqueFd file, const Shape& shape) {
  return ControlBlock(MemoryFile::attach(std::move(file), Layout(shape).end), shape);
}

std::byte* ControlBlock::window_in(std::uint64_t index) const {
  return start_ + layout_.windows + index % 2 * layout_.window_stride;
}

std::byte* ControlBlock::window_out(std::uint64_t index) const {
  return window_in(index) + 2 * layout_.window_stride;
}

Channel& ControlBlock::channel(int to) const {
  return reinterpret_cast<Channel*>(start_ + layout_.channels)[to];
}

std::byte* ControlBlock::channel_data(int to) const {
  return start_ + layout_.channel_data + static_cast<std::size_t>(to) * layout_.channel_stride;
}

Fences ControlBlock::fences() const {
  return head().fences;
}

void ControlBlock::set_abort_reason(std::string_view reason) const {
  std::uint32_t none = 0;
  // Two threads may abort at once: the one that takes the state writes the text, and peers read the
  // text only after the store below.
  if (!head().abort_state.compare_exchange_strong(none, 1)) return;
  const std::size_t size = std::min(reason.size(), sizeof(head().reason) - 1);
  std::memcpy(head().reason, reason.data(), size);
  head().reason[size] = '\0';
  head().abort_state.store(kReasonSet);
}

std::string ControlBlock::reason() const {
  return {head().reason, strnlen(head().reason, sizeof(head().reason))};
}

}  // namespace troika::shm
