#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/diagnosis.h>
#include <troika/comm/fold.h>
#include <troika/comm/shm/engine.h>

#include <ATen/ATen.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <cstring>
#include <numeric>

namespace troika::shm {
namespace {

// Up to this size an operation is finished by whoever waits for it: starting a thread on it would
// take longer than the operation.
constexpr std::size_t kFinishedByWaiter = std::size_t{256} << 10;

std::byte* data(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

std::size_t bytes(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.nbytes() : 0;
}

// [begin, end) of one member's part within all parts.
struct Range {
  std::size_t begin, end;
};

Range range_of(std::span<const std::int64_t> counts, int member, std::size_t element) {
  const auto before = std::accumulate(counts.begin(), counts.begin() + member, std::int64_t{0});
  const auto begin = static_cast<std::size_t>(before) * element;
  return {begin,
          begin + static_cast<std::size_t>(counts[static_cast<std::size_t>(member)]) * element};
}

// Copies what window [begin, end) of a member's contribution shares with `wanted`, whose first byte
// goes to `to`. Returns how many bytes that were.
std::size_t take_range(const std::byte* view, std::size_t begin, std::size_t end, Range wanted,
                       std::byte* to) {
  const std::size_t low = std::max(begin, wanted.begin), high = std::min(end, wanted.end);
  if (low >= high) return 0;
  std::memcpy(to + (low - wanted.begin), view + (low - begin), high - low);
  return high - low;
}

Collective::Fold folding(at::ScalarType dtype, ReduceOp op) {
  return [dtype, op](std::span<const std::byte* const> views, std::byte* out, std::size_t size) {
    fold(dtype, op, views, out, static_cast<std::int64_t>(size / c10::elementSize(dtype)));
  };
}

}  // namespace

// An operation that is finished by whoever waits for it, asks whether it is done, or starts a later
// one.
class Engine::Pending final : public Work::State {
 public:
  Pending(std::function<bool()> ready, std::function<void()> body)
      : ready_(std::move(ready)), body_(std::move(body)) {}

  bool done() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // somebody waits for it just now
    if (!done_ && ready_()) finish();
    return done_;
  }

  void wait() override {
    const std::lock_guard lock(mutex_);
    if (!done_) finish();
    if (error_) std::rethrow_exception(error_);
  }

  void on_done(std::function<void(std::exception_ptr)> callback) override {
    const std::lock_guard lock(mutex_);
    if (done_) {
      callback(error_);
    } else {
      callbacks_.push_back(std::move(callback));
    }
  }

 private:
  void finish() {
    try {
      body_();
    } catch (...) {
      error_ = std::current_exception();
    }
    ready_ = nullptr;
    body_ = nullptr;  // lets go of its tensors
    for (const auto& callback : callbacks_) callback(error_);
    callbacks_.clear();
    done_ = true;
  }

  std::mutex mutex_;
  std::function<bool()> ready_;
  std::function<void()> body_;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

Engine::Engine(Members members, Attached attached, const Shape& shape, Seconds spin)
    : members_(std::move(members)),
      wires_(std::move(attached.wires)),
      party_(std::move(attached.boards), shape, members_.index, spin),
      segments_(std::make_shared<Segments>(wires_, members_.index)),
      find_([this](int member, std::uint32_t segment, const Deadline& deadline) {
        return segments_->find(member, segment, deadline);
      }),
      mailbox_(party_),
      lane_(std::make_unique<Lane>(Lane::Order::kAsAdded)),
      exchange_lane_(std::make_unique<Lane>(Lane::Order::kIndependent)),
      stop_watching_(eventfd(0, EFD_CLOEXEC)) {
  check(stop_watching_.valid(), "no eventfd for the engine shm");
  watcher_ = std::thread([this] { watch(); });
}

Engine::~Engine() {
  lane_.reset();
  exchange_lane_.reset();
  for (const auto& weak : pending_) {
    if (const auto pending = weak.lock()) {
      try {
        pending->wait();
        // Whoever has the handle is told. NOLINTNEXTLINE(bugprone-empty-catch)
      } catch (const std::exception&) {
      }
    }
  }
  eventfd_write(stop_watching_.get(), 1);
  watcher_.join();
}

Work Engine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  const auto element = static_cast<std::size_t>(tensor.element_size());
  return start(named("all_reduce", call),
               tensor, bytes(tensor), 0,
               [fold = folding(tensor.scalar_type(), op), element](Collective& collective,
                                                                   const Deadline& deadline) {
                 collective.reduce(fold, element, deadline);
               });
}

Work Engine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            std::span<const std::int64_t> counts, ReduceOp op, const Call& call) {
  const Range own = range_of(counts, members_.index, input.element_size());
  return start(
      named("reduce_scatter", call),
      input, bytes(input), 0,
      [=, fold = folding(input.scalar_type(), op), record = call.record](
          Collective& collective, const Deadline& deadline) {
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              const std::size_t low = std::max(begin, own.begin), high = std::min(end, own.end);
              if (low >= high) return;
              record.sent((views.size() - 1) * (high - low));
              std::vector<const std::byte*> shifted;
              for (const std::byte* view : views) shifted.push_back(view + (low - begin));
              fold(shifted, data(output) + (low - own.begin), high - low);
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
      named("all_gather", call),
      input, largest, 0,
      [=, record = call.record, own = static_cast<std::size_t>(members_.index),
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
  // Nobody knows how the others cut their inputs: a table of ends, in bytes, goes in front.
  const auto element = static_cast<std::size_t>(input.element_size());
  const std::size_t members = wires_.size(), table = members * sizeof(std::uint64_t);
  const at::Tensor sent = at::empty({static_cast<std::int64_t>(table + bytes(input))}, at::kByte);
  auto* ends = reinterpret_cast<std::uint64_t*>(data(sent));
  for (std::size_t member = 0; member < members; ++member) {
    ends[member] = table + range_of(input_counts, static_cast<int>(member), element).end;
  }
  if (bytes(input) > 0) std::memcpy(data(sent) + table, data(input), bytes(input));
  const int own = members_.index;
  return start(
      named("all_to_all", call),
      sent, std::max(bytes(sent), bytes(output)), 0,
      [=, this, record = call.record,
       counts = std::vector(output_counts.begin(), output_counts.end())](
          Collective& collective, const Deadline& deadline) {
        std::vector<Range> wanted(members);
        collective.gather(
            [&](std::span<const std::byte* const> views, std::size_t begin, std::size_t end) {
              for (std::size_t member = 0; member < members; ++member) {
                const Range part = range_of(counts, static_cast<int>(member), element);
                if (begin == 0) {
                  const auto* theirs = reinterpret_cast<const std::uint64_t*>(views[member]);
                  wanted[member] = {own == 0 ? table : theirs[own - 1], theirs[own]};
                  if (wanted[member].end - wanted[member].begin != part.end - part.begin) {
                    throw UsageError(members_.name(static_cast<int>(member)) + " sends " +
                                     format_bytes(wanted[member].end - wanted[member].begin) +
                                     ", and this member expects " +
                                     format_bytes(part.end - part.begin));
                  }
                }
                const std::size_t taken =
                    take_range(views[member], begin,
                               std::min(end, collective.bytes(static_cast<int>(member))),
                               wanted[member], data(output) + part.begin);
                if (static_cast<int>(member) != own) record.sent(taken);
              }
            },
            deadline);
      });
}

Work Engine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  const bool sends = root == members_.index;
  return start(
      named("broadcast", call),
      sends ? tensor : at::Tensor(), bytes(tensor), 0,
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
  const bool receives = root == members_.index;
  const int own = members_.index;
  return start(
      named("gather", call),
      input, bytes(input), 0,
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
  const auto index = static_cast<std::size_t>(members_.index);
  const std::size_t part = bytes(output), members = wires_.size();
  const bool sends = root == members_.index;
  return start(
      named("scatter", call),
      sends ? input : at::Tensor(), part * members, 0,
      [=, record = call.record](Collective& collective, const Deadline& deadline) {
        const Range own{index * part, (index + 1) * part};
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
  return start(
      named("barrier", call), {},
      0, 0,
      [](Collective& collective, const Deadline& deadline) { collective.gather({}, deadline); });
}

Work Engine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const Named named = this->named("exchange", call);
  auto batch = std::make_shared<Mailbox::Batch>();
  std::vector<at::Tensor> tensors;
  std::size_t largest = 0;
  run(named, [&] {
    for (const Transfer& transfer : transfers) {
      const std::size_t size = bytes(transfer.tensor);
      if (size == 0) continue;
      largest = std::max(largest, size);
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
  const auto body = [this, named, batch, tensors = std::move(tensors)] {
    run(named, [&] { mailbox_.wait(batch, named.deadline); });
    named.record.step();
  };
  if (largest <= party_.shape().channel_bytes) {
    const auto ready = [this, batch] {
      if (!batch->done()) mailbox_.progress();
      return batch->done();
    };
    auto pending = std::make_shared<Pending>(ready, body);
    pending_.push_back(pending);
    return Work(std::move(pending));
  }
  return exchange_lane_->add({.deadline = call.deadline, .run = body, .overdue = [this, named] {
                                return std::make_exception_ptr(
                                    DeadlineError(named.text + ": an earlier operation hangs"));
                              }});
}

Work Engine::start(Named named, const at::Tensor& contribution, std::size_t largest,
                   std::uint64_t aside, Finish finish) {
  finish_pending();
  const std::uint64_t number = ++operations_;
  Contribution own{contribution.defined() ? data(contribution) : nullptr, bytes(contribution),
                   std::nullopt, aside};
  if (own.bytes > party_.shape().slot_bytes) own.location = segments_->locate(own.data, own.bytes);
  const auto make = [this, number, named, own] {
    party_.throw_if_broken();
    return std::make_shared<Collective>(party_, find_, number, named.record, named.text, own,
                                        named.deadline);
  };
  if (Collective::place_of(own, party_.shape()) == Place::kStream) {
    return in_lane(named, [this, named, contribution, make, finish = std::move(finish)] {
      run(named, [&] { finish(*make(), named.deadline); });
    });
  }
  std::shared_ptr<Collective> collective;
  run(named, [&] { collective = make(); });
  auto body = [this, named, contribution, collective, finish = std::move(finish)] {
    run(named, [&] { finish(*collective, named.deadline); });
  };
  // Operations end in the order in which they were called: none overtakes what is in the lane.
  if (largest > kFinishedByWaiter || !last_in_lane_.done()) return in_lane(named, std::move(body));
  auto pending =
      std::make_shared<Pending>([collective] { return collective->ready(); }, std::move(body));
  pending_.push_back(pending);
  return Work(std::move(pending));
}

Work Engine::in_lane(const Named& named, std::function<void()> body) {
  last_in_lane_ =
      lane_->add({.deadline = named.deadline, .run = std::move(body), .overdue = [this, named] {
                    return overdue(named);
                  }});
  return last_in_lane_;
}

// Keeps the list short, and the ring from running full of operations that nobody waits for.
void Engine::finish_pending() {
  while (!pending_.empty()) {
    const auto first = pending_.front().lock();
    if (first && !first->done() && pending_.size() < Shape::kRing / 2) return;
    if (first && !first->done()) first->wait();
    pending_.pop_front();
  }
}

void Engine::run(const Named& named, const std::function<void()>& body) {
  const std::string where = named.text + " on axis " + members_.axis;
  try {
    body();
  } catch (const Late& error) {
    const Diagnosis diagnosis = examine(named, error.missing());
    party_.give_up(diagnosis.message);
    throw DeadlineError(diagnosis.message, diagnosis.hint);
  } catch (const Broken& error) {
    const std::string who = error.by() < 0 ? "" : members_.name(error.by()) + " gave up: ";
    throw PeerError(where + ": " + who + error.what(),
                    who.empty() ? "that process has ended: its last lines say why" : "");
  } catch (const Mismatch& error) {
    const Diagnosis diagnosis = examine(named, {error.member()});
    std::string message = diagnosis.message;
    if (members_.recorders.empty()) {
      message = members_.name(error.member()) + " is in " +
                (error.theirs() == named.text ? "the same operation with other sizes or types"
                                              : error.theirs()) +
                ", and " + members_.name(members_.index) + " in " + named.text;
    }
    party_.give_up(message);
    throw PeerError(where + ": " + message, "all ranks must call the same operations, in the same "
                                            "order, with the same sizes and types");
  } catch (const WrongSize& error) {
    const std::string message = members_.name(error.member()) + " sends " +
                                format_bytes(error.theirs()) + " where " +
                                format_bytes(error.ours()) + " are expected";
    party_.give_up(message);
    throw PeerError(where + ": " + message);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    party_.give_up(named.text + " failed: " + error.what());
    throw;
  }
}

Engine::Named Engine::named(std::string_view operation, const Call& call) {
  return {std::string(operation) + " " + quote(call.label), call.deadline, call.record};
}

Diagnosis Engine::examine(const Named& named, std::vector<int> suspects) {
  std::erase(suspects, members_.index);  // this one, which waits
  const Wait wait{named.text, named.record.place(), named.record.signature(),
                  named.deadline.timeout()};
  // All members share this host: nobody has to be asked.
  return diagnose(members_, wait, Witness(std::nullopt).look(members_, Seconds(0)), suspects);
}

std::exception_ptr Engine::overdue(const Named& named) {
  const std::string message = named.text + " on axis " + members_.axis +
                              ": an earlier operation took more than " +
                              format_duration(named.deadline.timeout().count());
  party_.give_up(message);
  return std::make_exception_ptr(DeadlineError(message));
}

void Engine::abort(const std::string& reason) {
  party_.give_up(reason);
}

at::Tensor Engine::allocate(std::size_t bytes) {
  if (bytes == 0) return at::empty({0}, at::kByte);
  std::shared_ptr<std::byte> memory = Segments::allocate(segments_, bytes);
  if (!memory) return GroupEngine::allocate(bytes);
  std::byte* start = memory.get();
  return at::from_blob(
      start, {static_cast<std::int64_t>(bytes)},
      [memory = std::move(memory)](void*) mutable { memory.reset(); }, at::kByte);
}

std::string Engine::death_of(int member) {
  const auto snapshots = Witness(std::nullopt).look(members_, Seconds(0));
  const auto& snapshot = snapshots[static_cast<std::size_t>(member)];
  return "lost " + members_.name(member) + (snapshot ? "; " + last_deed(*snapshot) : "");
}

// Tells of deaths: a peer that has ended makes no more news.
void Engine::watch() {
  std::vector<pollfd> watched = {{stop_watching_.get(), POLLIN, 0}};
  for (const auto& wire : wires_) watched.push_back({wire ? wire->death() : -1, POLLIN, 0});
  while (poll(watched.data(), watched.size(), -1) < 0 || watched[0].revents == 0) {
    for (int member = 0; member < party_.size(); ++member) {
      pollfd& peer = watched[static_cast<std::size_t>(member) + 1];
      if (peer.revents == 0) continue;
      peer.fd = -1;  // once is enough
      const Board& board = party_.board(member);
      party_.lose(board.has_given_up() ? members_.name(member) + " gave up: " + board.reason()
                                       : death_of(member));
    }
  }
}

}  // namespace troika::shm
