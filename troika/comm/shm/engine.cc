#include <troika/base/error.h>
#include <troika/base/short_copy.h>
#include <troika/base/text.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/reduce.h>
#include <troika/comm/shm/engine.h>
#include <troika/comm/shm/engine_pending.h>
#include <troika/comm/shm/parts.h>
#include <troika/observe/memory_counter.h>

#include <ATen/ATen.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

namespace troika::shm {
namespace {

std::byte* data(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

std::size_t bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.nbytes() : 0;
}

// For Collective::Reducer.
auto reducer_for(at::ScalarType dtype, ReduceOp op) {
  return [dtype, op](std::span<const std::byte* const> views, std::byte* out, std::size_t size) {
    reduce_in_rank_order(dtype, op, views, out,
                         static_cast<std::int64_t>(size / c10::elementSize(dtype)));
  };
}

// "all_reduce 'loss'" as peers read it, in `room`, cut where it is too long.
std::string_view short_name(std::string_view operation, std::string_view label,
                            std::array<char, kCacheLine>& room) {
  std::size_t size = 0;
  for (const std::string_view part :
       {operation, std::string_view(" '"), label, std::string_view("'")}) {
    size += copy_short(std::span(room).subspan(size), part);
  }
  return {room.data(), size};
}

// All-reduce as `finish` of Engine::start.
template <class Reducer>
struct Reduction {
  void operator()(Collective& collective, const Deadline& deadline) const {
    collective.reduce(reducer, element, deadline);
  }
  // What can be done at once; whether that was all.
  [[nodiscard]] bool early(Collective& collective, const Deadline& deadline) const {
    return collective.reduce_early(reducer, element, deadline);
  }
  Reducer reducer;
  std::size_t element;  // bytes
};

template <class Finish>
concept HasEarlyStep = requires(const Finish& finish, Collective& collective, Deadline deadline) {
  { finish.early(collective, deadline) } -> std::same_as<bool>;
};

// Lets go of what is done: to ask again would take a lock.
bool is_pending(Work& work) {
  if (!work.done()) return true;
  work = {};
  return false;
}

// What a peer sends, against what is expected of it, and the other way round.
void compare_sizes(int peer, std::uint64_t sends, std::uint64_t expected, std::uint64_t expects,
                   std::uint64_t sent) {
  using enum SizesDiffer::Ours;
  const auto number = [](std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); };
  if (sends != expected) throw SizesDiffer(peer, kExpected, number(expected), number(sends));
  if (expects != sent) throw SizesDiffer(peer, kSent, number(sent), number(expects));
}

}  // namespace

Engine::Engine(Members members, Attached attached, const Shape& shape, ShmGroup::Backoff backoff)
    : EngineBase({.name = "shm", .members = std::move(members)}),
      connections_(std::move(attached.connections)),
      group_(std::move(attached.control_blocks), shape, index(), backoff),
      segments_(std::make_shared<Segments>(connections_, index())),
      find_([this](int member, std::uint32_t segment, const Deadline& deadline) {
        return segments_->find(member, segment, deadline);
      }),
      mailbox_(group_),
      stop_watching_(eventfd(0, EFD_CLOEXEC)) {
  check(stop_watching_.valid(), "no eventfd for the engine shm");
  watcher_ = std::thread([this] { watch(); });
}

Engine::~Engine() {
  stop();
  for (const auto& pending : pending_) wait_ignoring_errors(*pending);
  for (const auto& pending : pending_exchanges_) wait_ignoring_errors(*pending);
  // Published before the connections close: a peer that saw the exit first would take it for a
  // death.
  if (!group_.broken()) group_.leave();
  // The watcher reads connections and segments, so it ends before they do.
  eventfd_write(stop_watching_.get(), 1);
  watcher_.join();
  segments_->disconnect();
}

Work Engine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  const auto element = static_cast<std::size_t>(tensor.element_size());
  const std::size_t size = bytes(tensor);
  const bool at_once = Collective::reduces_at_once(size, group_.size(), group_.shape());
  return start("all_reduce", call, tensor, {at_once ? size : kUnbounded, size},
               Reduction{reducer_for(tensor.scalar_type(), op), element}, Use::kInPlace);
}

Work Engine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            std::span<const std::int64_t> counts, ReduceOp op, const Call& call) {
  const Range own = range_of(counts, index(), input.element_size());
  return start(
      "reduce_scatter", call, input, {bytes(input), bytes(input)},
      [=, reducer = reducer_for(input.scalar_type(), op), record = call.record](
          Collective& collective, const Deadline& deadline) {
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              const std::size_t low = std::max(begin, own.begin), high = std::min(end, own.end);
              if (low >= high) return;
              record.sent((views.size() - 1) * (high - low));
              std::vector<const std::byte*> shifted;
              for (const std::byte* view : views) shifted.push_back(view + (low - begin));
              reducer(shifted, data(output) + (low - own.begin), high - low);
            },
            deadline);
      });
}

Work Engine::all_gather(const at::Tensor& output, const at::Tensor& input,
                        std::span<const std::int64_t> counts, const Call& call) {
  const auto element = static_cast<std::size_t>(output.element_size());
  const auto largest =
      static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end())) * element;
  return start(
      "all_gather", call, input, {largest, bytes(output)},
      [=, record = call.record, own = static_cast<std::size_t>(index()),
       counts = std::vector(counts.begin(), counts.end())](Collective& collective,
                                                           const Deadline& deadline) {
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              for (std::size_t member = 0; member < views.size(); ++member) {
                const Range part = range_of(counts, static_cast<int>(member), element);
                std::byte* to = data(output) + part.begin;
                if (views[member] == to + begin) continue;  // already there
                const std::size_t taken =
                    take_range(views[member], begin, end, {0, part.end - part.begin}, to);
                if (member != own) record.sent(taken);
              }
            },
            deadline);
      });
}

Work Engine::all_to_all(const at::Tensor& output, std::span<const std::int64_t> output_counts,
                        const at::Tensor& input, std::span<const std::int64_t> input_counts,
                        const Call& call) {
  // Nobody knows how the others cut their inputs: a table of what goes to whom, and of what is
  // expected of them, goes in front.
  struct Cut {
    std::uint64_t begin, end, expected;  // bytes
  };
  const auto element = static_cast<std::size_t>(input.element_size());
  const std::size_t members = connections_.size(), table = members * sizeof(Cut);
  const at::Tensor sent = at::empty({static_cast<std::int64_t>(table + bytes(input))}, at::kByte);
  std::vector<std::uint64_t> given(members);
  for (std::size_t member = 0; member < members; ++member) {
    const Range to = range_of(input_counts, static_cast<int>(member), element);
    const Range from = range_of(output_counts, static_cast<int>(member), element);
    given[member] = to.end - to.begin;
    reinterpret_cast<Cut*>(data(sent))[member] = {table + to.begin, table + to.end,
                                                  from.end - from.begin};
  }
  if (bytes(input) > 0) std::memcpy(data(sent) + table, data(input), bytes(input));
  const int own = index();
  return start(
      "all_to_all", call, sent, {kUnbounded, bytes(sent)},  // the others may send more
      [=, record = call.record, counts = std::vector(output_counts.begin(), output_counts.end())](
          Collective& collective, const Deadline& deadline) {
        std::vector<Range> wanted(members);
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              for (std::size_t member = 0; member < members; ++member) {
                const Range part = range_of(counts, static_cast<int>(member), element);
                if (begin == 0) {
                  const Cut& theirs = reinterpret_cast<const Cut*>(views[member])[own];
                  wanted[member] = {theirs.begin, theirs.end};
                  compare_sizes(static_cast<int>(member), theirs.end - theirs.begin,
                                part.end - part.begin, theirs.expected, given[member]);
                }
                const std::size_t taken = take_range(
                    views[member], begin, std::min(end, collective.bytes(static_cast<int>(member))),
                    wanted[member], data(output) + part.begin);
                if (static_cast<int>(member) != own) record.sent(taken);
              }
            },
            deadline);
      });
}

Work Engine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  const bool sends = root == index();
  return start(
      "broadcast", call, sends ? tensor : at::Tensor(), {bytes(tensor), bytes(tensor)},
      [=, record = call.record](Collective& collective, const Deadline& deadline) {
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              if (sends) return;
              std::memcpy(data(tensor) + begin, views[static_cast<std::size_t>(root)], end - begin);
              record.sent(end - begin);
            },
            deadline);
      });
}

Work Engine::gather(const at::Tensor& output, const at::Tensor& input, int root, const Call& call) {
  const bool receives = root == index();
  const int own = index();
  return start(
      "gather", call, input, {bytes(input), receives ? bytes(output) : bytes(input)},
      [=, record = call.record](Collective& collective, const Deadline& deadline) {
        const std::size_t part = bytes(input);
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              if (!receives) return;
              for (std::size_t member = 0; member < views.size(); ++member) {
                std::byte* to = data(output) + member * part + begin;
                if (static_cast<int>(member) == own && to == data(input) + begin) continue;
                std::memcpy(to, views[member], end - begin);
                if (static_cast<int>(member) != own) record.sent(end - begin);
              }
            },
            deadline);
      });
}

Work Engine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                     const Call& call) {
  const auto own_index = static_cast<std::size_t>(index());
  const std::size_t part = bytes(output), members = connections_.size();
  const bool sends = root == index();
  return start(
      "scatter", call, sends ? input : at::Tensor(), {part * members, part * members},
      [=, record = call.record](Collective& collective, const Deadline& deadline) {
        const Range own{own_index * part, (own_index + 1) * part};
        if (sends && data(input) + own.begin != data(output)) {
          std::memcpy(data(output), data(input) + own.begin, part);
        }
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              if (sends) return;
              record.sent(
                  take_range(views[static_cast<std::size_t>(root)], begin, end, own, data(output)));
            },
            deadline);
      });
}

Work Engine::barrier(const Call& call) {
  return start("barrier", call, {}, {0, 0}, [](Collective& collective, const Deadline& deadline) {
    collective.gather([](auto&&...) {}, deadline);
  });
}

Work Engine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const OperationContext context("exchange", call);
  call.entered();
  auto batch = std::make_shared<Mailbox::Batch>(call.label);
  std::vector<at::Tensor> tensors;
  run(context, [&] {
    group_.throw_if_broken();
    for (const Transfer& transfer : transfers) {
      const std::size_t size = bytes(transfer.tensor);
      if (size == 0) continue;
      tensors.push_back(transfer.tensor);
      if (transfer.direction == Transfer::Direction::kReceive) {
        mailbox_.receive(batch, transfer.peer, data(transfer.tensor), size);
      } else {
        mailbox_.send(batch, transfer.peer, data(transfer.tensor), size);
        call.record.sent(size);
      }
    }
    mailbox_.progress();
  });
  if (batch->done()) return {};
  // Whoever waits finishes it, where the others do not depend on that.
  if (mailbox_.is_buffered(batch)) {
    auto pending = std::make_shared<SmallExchange>(*this, context, batch, std::move(tensors));
    // Kept until done, so that the destructor waits for them: their tensors are read or written
    // until then.
    std::erase_if(pending_exchanges_, [](const auto& each) { return each->done(); });
    pending_exchanges_.push_back(pending);
    return Work(std::move(pending));
  }
  const auto body = [this, name = OwnedContext(context), batch, tensors = std::move(tensors)] {
    finish_exchange(name.get(), batch);
  };
  return enqueue_beside({.deadline = call.deadline, .run = body, .overdue = {}},
                        OwnedContext(context));
}

void Engine::finish_exchange(const OperationContext& context,
                             const std::shared_ptr<Mailbox::Batch>& batch) {
  run(context, [&] { mailbox_.wait(batch, context.deadline); });
  context.record.step();
}

template <class Finish>
Work Engine::start(std::string_view operation, const Call& call, const at::Tensor& contribution,
                   Amount amount, Finish finish, Use use) {
  const OperationContext context(operation, call);
  const std::uint64_t number = ++operations_;
  Contribution own{contribution.defined() ? data(contribution) : nullptr, bytes(contribution),
                   std::nullopt, amount.at_once};
  const Shape& shape = group_.shape();
  const bool one_step =
      own.at_once <= (use == Use::kLargeSlots ? shape.large_slot_bytes : shape.slot_bytes);
  if (own.bytes > shape.slot_bytes && !one_step) {
    own.location = segments_->locate(own.data, own.bytes);
  }
  const bool has_to_wait = announcing_waits(number, Collective::placement_of(own, shape));
  Collective collective(group_, find_, number, context.record, own);
  // As early as can be: what follows goes on while the others come.
  if (!has_to_wait) announce(collective, context);
  call.entered();
  while (!pending_.empty() && pending_.front()->done()) pending_.pop_front();
  const bool follows_queued = is_pending(last_queued_);
  // Where all are there, or about to be, that is all.
  if (!has_to_wait && !follows_queued && pending_.empty()) {
    if (one_step && group_.ready_soon([&] { return collective.ready(); })) {
      run(context, [&] { finish(collective, context.deadline); });
      return {};
    }
    if constexpr (HasEarlyStep<Finish>) {
      bool is_all = false;
      if (!one_step && amount.moved <= kWorthAThread) {
        run(context, [&] { is_all = finish.early(collective, context.deadline); });
      }
      if (is_all) return {};
    }
  }
  auto pending = std::make_shared<Operation<Finish>>(*this, context, collective, contribution,
                                                     std::move(finish));
  WorkQueue::Job job{.deadline = context.deadline, .run = {}, .overdue = {}};
  if (amount.moved <= kWorthAThread) job.start = WorkQueue::Start::kSoon;
  if (has_to_wait) {
    // What it waits for may be that this member is done with earlier ones, as it may be at a peer.
    for (const auto& each : pending_) job.latest = std::max(job.latest, each->deadline().at());
    job.run = [this, pending, earlier = pending_] {
      for (const auto& each : earlier) wait_ignoring_errors(*each);
      pending->announce();
      pending->body();
    };
    return last_to_announce_ = enqueue_last(std::move(job), pending->name());
  }
  // Operations end in the order in which they were called: none overtakes what is in the queue.
  if (!one_step || follows_queued) {
    job.run = [pending] { pending->body(); };
    return enqueue_last(std::move(job), pending->name());
  }
  pending_.push_back(pending);
  return Work(std::move(pending));
}

bool Engine::announcing_waits(std::uint64_t number, Placement placement) {
  if (placement == Placement::kStream || !group_.entry_is_free(number)) return true;
  // Large slots are taken in order, by one thread at a time.
  return placement == Placement::kLargeSlot &&
         (is_pending(last_to_announce_) || !group_.large_slot_is_free());
}

void Engine::announce(Collective& collective, const OperationContext& context) {
  run(context, [&] {
    group_.throw_if_broken();
    std::array<char, kCacheLine> room;
    collective.announce(short_name(context.operation, context.label, room), context.deadline);
  });
}

Work Engine::enqueue_last(WorkQueue::Job job, const OwnedContext& context) {
  return last_queued_ = enqueue(std::move(job), context);
}

void Engine::wait_ignoring_errors(Pending& pending) {
  try {
    pending.wait();
    // Whoever has the handle is told. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

at::Tensor Engine::allocate(std::size_t bytes) {
  if (bytes == 0) return at::empty({0}, at::kByte);
  std::shared_ptr<std::byte> memory = Segments::allocate(segments_, bytes);
  if (!memory) return GroupEngine::allocate(bytes);
  std::byte* start = memory.get();
  const auto size = static_cast<std::int64_t>(bytes);
  cpu_tensor_bytes().add(size);
  const auto release = [memory = std::move(memory), size](void*) mutable {
    memory.reset();
    cpu_tensor_bytes().remove(size);
  };
  return at::from_blob(start, {size}, release, at::kByte);
}

}  // namespace troika::shm
