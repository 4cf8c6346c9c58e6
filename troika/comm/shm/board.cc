#include <troika/comm/shm/board.h>

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

}  // namespace

struct Board::Head {
  alignas(kLine) std::atomic<std::uint32_t> bell;
  alignas(kLine) std::atomic<std::uint32_t> sleepers;
  // 0: no reason; 1: being written; 2: there.
  alignas(kLine) std::atomic<std::uint32_t> given_up;
  char reason[kReason];
};

namespace {

// Offsets of the parts of a board, in the order in which they lie.
struct Layout {
  explicit Layout(const Shape& shape) {
    const auto members = static_cast<std::size_t>(shape.members);
    operations = kPage;
    slots = operations + whole_pages(Shape::kRing * sizeof(Operation));
    windows = slots + whole_pages(Shape::kRing * shape.slot_bytes);
    channels = windows + 4 * whole_pages(shape.window_bytes);
    channel_data = channels + whole_pages(members * sizeof(Channel));
    end = channel_data + members * whole_pages(shape.channel_bytes);
  }
  std::size_t operations, slots, windows, channels, channel_data, end;
};

}  // namespace

Board Board::create(const Shape& shape) {
  Board board(MemoryFile::create(Layout(shape).end), shape);
  // Zeroed memory: every counter starts at 0. The objects begin their lives here.
  new (board.memory_->data()) Head{};
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
  return *reinterpret_cast<Head*>(memory_->data());
}

Operation& Board::operation(std::uint64_t number) const {
  auto* first = reinterpret_cast<Operation*>(memory_->data() + Layout(shape_).operations);
  return first[number % Shape::kRing];
}

std::byte* Board::slot(std::uint64_t number) const {
  return memory_->data() + Layout(shape_).slots + number % Shape::kRing * shape_.slot_bytes;
}

std::byte* Board::window_in(std::uint64_t index) const {
  return memory_->data() + Layout(shape_).windows + index % 2 * whole_pages(shape_.window_bytes);
}

std::byte* Board::window_out(std::uint64_t index) const {
  return window_in(index) + 2 * whole_pages(shape_.window_bytes);
}

Channel& Board::channel(int to) const {
  return reinterpret_cast<Channel*>(memory_->data() + Layout(shape_).channels)[to];
}

std::byte* Board::channel_data(int to) const {
  return memory_->data() + Layout(shape_).channel_data +
         static_cast<std::size_t>(to) * whole_pages(shape_.channel_bytes);
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
