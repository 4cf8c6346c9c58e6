#include <troika/comm/shm/board.h>

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace troika::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReason = 1024;

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

struct Board::Head {
  Fences fences;
  alignas(kLine) std::atomic<std::uint32_t> bell;
  alignas(kLine) std::atomic<std::uint32_t> sleepers;
  // 0: no reason; 1: being written; 2: there.
  alignas(kLine) std::atomic<std::uint32_t> given_up;
  char reason[kReason];
};

static_assert(sizeof(Operation) == 2 * kLine);

Board::Layout::Layout(const Shape& shape)
    : operations(kPage),
      slots(operations + whole_pages(Shape::kRing * sizeof(Operation))),
      large_slots(slots + whole_pages(Shape::kRing * shape.slot_bytes)),
      windows(large_slots + whole_pages(Shape::kLargeSlots * shape.large_slot_bytes)),
      window_stride(whole_pages(shape.window_bytes)),
      channels(windows + 4 * window_stride),
      channel_data(channels +
                   whole_pages(static_cast<std::size_t>(shape.members) * sizeof(Channel))),
      channel_stride(whole_pages(shape.channel_bytes)),
      end(channel_data + static_cast<std::size_t>(shape.members) * channel_stride) {}

Board::Board(MemoryFile memory, const Shape& shape)
    : memory_(std::make_shared<MemoryFile>(std::move(memory))),
      shape_(shape),
      layout_(shape),
      start_(memory_->data()) {}

Board Board::create(const Shape& shape, Fences fences) {
  Board board(MemoryFile::create(Layout(shape).end), shape);
  // Zeroed memory: every counter starts at 0. The objects begin their lives here.
  new (board.start_) Head{};
  board.head().fences = fences == Fences::kAtSleep && takes_fences() ? fences : Fences::kAtNews;
  for (std::uint64_t number = 0; number < Shape::kRing; ++number) {
    new (&board.operation(number)) Operation{};
  }
  for (int member = 0; member < shape.members; ++member) new (&board.channel(member)) Channel{};
  return board;
}

Board Board::attach(UniqueFd file, const Shape& shape) {
  return Board(MemoryFile::attach(std::move(file), Layout(shape).end), shape);
}

Board::Head& Board::head() const {
  return *reinterpret_cast<Head*>(start_);
}

Operation& Board::operation(std::uint64_t number) const {
  return reinterpret_cast<Operation*>(start_ + layout_.operations)[number % Shape::kRing];
}

std::byte* Board::slot(std::uint64_t number, std::size_t bytes) const {
  if (bytes <= Operation::kInline) return operation(number).small;
  return start_ + layout_.slots + number % Shape::kRing * shape_.slot_bytes;
}

std::byte* Board::large_slot(std::uint64_t index) const {
  return start_ + layout_.large_slots + index % Shape::kLargeSlots * shape_.large_slot_bytes;
}

std::byte* Board::window_in(std::uint64_t index) const {
  return start_ + layout_.windows + index % 2 * layout_.window_stride;
}

std::byte* Board::window_out(std::uint64_t index) const {
  return window_in(index) + 2 * layout_.window_stride;
}

Channel& Board::channel(int to) const {
  return reinterpret_cast<Channel*>(start_ + layout_.channels)[to];
}

std::byte* Board::channel_data(int to) const {
  return start_ + layout_.channel_data + static_cast<std::size_t>(to) * layout_.channel_stride;
}

Fences Board::fences() const {
  return head().fences;
}

std::atomic<std::uint32_t>& Board::bell() const {
  return head().bell;
}

std::atomic<std::uint32_t>& Board::sleepers() const {
  return head().sleepers;
}

void Board::give_up(std::string_view reason) const {
  std::uint32_t none = 0;
  if (!head().given_up.compare_exchange_strong(none, 1)) return;
  const std::size_t size = std::min(reason.size(), kReason - 1);
  std::memcpy(head().reason, reason.data(), size);
  head().reason[size] = '\0';
  head().given_up.store(2);
}

bool Board::has_given_up() const {
  return head().given_up.load() == 2;
}

std::string Board::reason() const {
  return {head().reason, strnlen(head().reason, kReason)};
}

}  // namespace troika::shm
