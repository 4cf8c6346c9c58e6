#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/diagnosis.h>
#include <troika/comm/message_engine.h>
#include <troika/comm/messages.h>
#include <troika/comm/overdue.h>

#include <ATen/ATen.h>

#include <exception>
#include <functional>
#include <thread>

namespace troika {
namespace {

// Exchanges and leave-taking have a tag each, collectives the upper half of the range.
constexpr std::uint32_t kExchangeTag = 1;
constexpr std::uint32_t kLeaveTag = 2;
constexpr std::uint32_t kCollectiveTags = std::uint32_t{1} << 30;

// The member that broke the connection leaves its reason on the board just after.
constexpr Seconds kForReasons{0.25};
// For what can be seen on other hosts.
constexpr Seconds kForWitnesses{1};
// Or it looks for the reason itself, as late() does.
constexpr Seconds kForSlowReasons = kForIndirectReasons + 2 * kForReasons;
static_assert(kForWitnesses + kForIndirectReasons + kForReasons < Lane::kForTheError);
static_assert(kForReasons + kForWitnesses + kForSlowReasons < Lane::kForTheError);

bool is_there(const std::optional<RankSnapshot>& snapshot) {
  return snapshot && snapshot->process != ProcessState::kUnknown &&
         snapshot->process != ProcessState::kEnded;
}

}  // namespace

MessageEngine::MessageEngine(std::string_view name, Members members, std::unique_ptr<Link> link,
                             ReasonBoard board, Witness witness)
    : name_(name),
      members_(std::move(members)),
      link_(std::move(link)),
      board_(std::move(board)),
      witness_(std::move(witness)),
      collectives_(*link_),
      exceptions_(std::uncaught_exceptions()),
      collective_lane_(std::make_unique<Lane>(Lane::Order::kAsAdded)),
      exchange_lane_(std::make_unique<Lane>(Lane::Order::kIndependent)),
      watch_(std::make_unique<ReasonWatch>(board_, [this](int member, const Reason& reason) {
        break_off({members_.name(member) + " gave up: " + reason.message, reason.hint});
      })) {}

MessageEngine::~MessageEngine() {
  collective_lane_.reset();
  exchange_lane_.reset();
  watch_.reset();
  if (broken_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    take_leave();
  } else {  // its process may stay, as one that waits for the end of MPI does
    break_off({"it has met an error of its own", "its last lines say why"});
  }
}

Work MessageEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  return collective("all_reduce", call, [=, this](const OperationScope& scope) {
    collectives_.all_reduce(tensor, op, scope);
  });
}

Work MessageEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                   std::span<const std::int64_t> counts, ReduceOp op,
                                   const Call& call) {
  return collective(
      "reduce_scatter", call,
      [=, this, counts = std::vector(counts.begin(), counts.end())](const OperationScope& scope) {
        collectives_.reduce_scatter(output, input, counts, op, scope);
      });
}

Work MessageEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                               std::span<const std::int64_t> counts, const Call& call) {
  return collective(
      "all_gather", call,
      [=, this, counts = std::vector(counts.begin(), counts.end())](const OperationScope& scope) {
        collectives_.all_gather(output, input, counts, scope);
      });
}

Work MessageEngine::all_to_all(const at::Tensor& output,
                               std::span<const std::int64_t> output_counts, const at::Tensor& input,
                               std::span<const std::int64_t> input_counts, const Call& call) {
  return collective("all_to_all", call,
                    [=, this, to = std::vector(input_counts.begin(), input_counts.end()),
                     from = std::vector(output_counts.begin(), output_counts.end())](
                        const OperationScope& scope) {
                      collectives_.all_to_all(output, from, input, to, scope);
                    });
}

Work MessageEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  return collective("broadcast", call, [=, this](const OperationScope& scope) {
    collectives_.broadcast(tensor, root, scope);
  });
}

Work MessageEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                           const Call& call) {
  return collective("gather", call, [=, this](const OperationScope& scope) {
    collectives_.gather(output, input, root, scope);
  });
}

Work MessageEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                            const Call& call) {
  return collective("scatter", call, [=, this](const OperationScope& scope) {
    collectives_.scatter(output, input, root, scope);
  });
}

Work MessageEngine::barrier(const Call& call) {
  return collective("barrier", call,
                    [this](const OperationScope& scope) { collectives_.barrier(scope); });
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work MessageEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const Named what = named("exchange", call);
  throw_if_broken(what);
  auto messages = std::make_shared<detail::Messages>(*link_, call.deadline, call.record);
  run(what, [&] {
    for (const Transfer& transfer : transfers) {
      const at::Tensor bytes = detail::as_bytes(transfer.tensor);
      if (transfer.direction == Transfer::Direction::kReceive) {
        messages->receive(transfer.peer, bytes, kExchangeTag);
      } else {
        messages->send(transfer.peer, bytes, kExchangeTag);
      }
    }
  });
  return add(*exchange_lane_, what, [messages] { messages->wait(); });
}

MessageEngine::Named MessageEngine::named(std::string_view operation, const Call& call) {
  return {std::string(operation) + " " + quote(call.label), call.deadline, call.record};
}

Work MessageEngine::collective(std::string_view operation, const Call& call,
                               std::function<void(const OperationScope&)> body) {
  const Named what = named(operation, call);
  throw_if_broken(what);
  const OperationScope scope{next_tag(call.record.signature()), call.deadline, call.record};
  return add(*collective_lane_, what, [scope, body = std::move(body)] { body(scope); });
}

Work MessageEngine::add(Lane& lane, const Named& named, std::function<void()> body) {
  const Deadline deadline = named.deadline;
  return lane.add({.deadline = deadline,
                   .run = [this, named, body = std::move(body)] { run(named, body); },
                   .overdue = [this, named] { return overdue(named); }});
}

// Counts the operations, and holds a trace of what each one is: members that do not do the same
// thing find nothing to match and run into the deadline, rather than take each other's bytes.
std::uint32_t MessageEngine::next_tag(std::uint64_t signature) {
  constexpr std::uint32_t kCounterBits = 20;
  const auto number = static_cast<std::uint32_t>(operations_++ % (1u << kCounterBits));
  const auto trace = static_cast<std::uint32_t>(signature >> 55);  // 9 bits
  return kCollectiveTags | trace << (kCounterBits + 1) | number << 1;
}

void MessageEngine::run(const Named& named, const std::function<void()>& body) {
  throw_if_broken(named);
  const ReasonWatch::UnderWay under_way(*watch_);
  try {
    body();
  } catch (const LinkError& error) {
    std::rethrow_exception(error_for(named, error));
  } catch (const SizesDiffer& error) {
    throw differ(named, error);
  } catch (const std::exception& error) {
    break_off({named.text + " failed: " + error.what(), ""});
    throw;
  }
}

void MessageEngine::throw_if_broken(const Named& named) {
  const std::lock_guard lock(mutex_);
  if (broken_) throw broken(named);
}

std::exception_ptr MessageEngine::error_for(const Named& named, const LinkError& error) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return std::make_exception_ptr(broken(named));
  }
  switch (error.reason()) {
    case LinkError::Reason::kDeadline:
      return late(named, error);
    case LinkError::Reason::kWrongSize:
      return wrong_size(named, error);
    case LinkError::Reason::kBroken:
      break;
  }
  return lost(named, error);
}

std::exception_ptr MessageEngine::late(const Named& named, const LinkError& error) {
  const Wait wait{named.text, named.record.place(), named.record.signature(),
                  named.deadline.timeout(), named.record.group()};
  const Diagnosis diagnosis =
      diagnose(members_, wait, witness_.look(members_, kForWitnesses), {error.peer()});
  if (diagnosis.held_up) {
    const int member = *diagnosis.held_up;
    if (const auto reason = await_reason(member, wait.waited)) {
      const Reason told{named.text + " on axis " + members_.axis + ": " + members_.name(member) +
                            " gave up: " + reason->message,
                        reason->hint};
      break_off(told);
      return std::make_exception_ptr(PeerError(told.message, told.hint));
    }
  }
  break_off({diagnosis.message, diagnosis.hint});
  // Of members in different operations each names the other: what to do says more.
  auto theirs = diagnosis.mutual ? std::nullopt : board_.reason_of(error.peer(), kForReasons);
  const std::string peer = members_.name(error.peer());
  // What it was told of itself, by this member or another, is no reason of its own.
  if (theirs && theirs->message.find(peer) != std::string::npos) theirs.reset();
  return std::make_exception_ptr(
      DeadlineError(diagnosis.message,
                    theirs ? peer + " gave up on its own: " + theirs->message : diagnosis.hint));
}

std::optional<Reason> MessageEngine::await_reason(int member, Seconds waited) {
  const Deadline enough = Deadline::in(kForIndirectReasons);
  while (!enough.passed()) {
    if (auto reason = reason_left(members_, member, waited + kForIndirectReasons)) return reason;
    const Deadline look = Deadline::in(kBetweenLooks);
    if (auto reason = board_.reason_of(member, look.left())) return reason;
    std::this_thread::sleep_for(look.left());
  }
  return std::nullopt;
}

std::exception_ptr MessageEngine::wrong_size(const Named& named, const LinkError& error) {
  const Reason reason{named.text + " on axis " + members_.axis + ": " +
                          members_.name(error.peer()) + " " + error.what(),
                      kSameOperations};
  break_off(reason);
  return std::make_exception_ptr(PeerError(reason.message, reason.hint));
}

std::exception_ptr MessageEngine::lost(const Named& named, const LinkError& error) {
  const std::string peer = members_.name(error.peer());
  std::string lost = "lost " + peer, hint = kHasEnded;
  auto theirs = board_.reason_of(error.peer(), kForReasons);
  if (!theirs) {
    const auto snapshots = witness_.look(members_, kForWitnesses);
    const auto& snapshot = snapshots[static_cast<std::size_t>(error.peer())];
    if (snapshot) lost += "; " + last_deed(*snapshot);
    if (is_there(snapshot)) {
      theirs = board_.reason_of(error.peer(), kForSlowReasons);
      hint =
          "its process is there, the connection to it is not: the network between the hosts or its "
          "last lines may say why";
    }
  }
  const std::string what = theirs ? peer + " gave up: " + theirs->message : lost;
  const Reason reason{named.text + " on axis " + members_.axis + ": " + what,
                      theirs ? theirs->hint : hint};
  break_off(reason);
  return std::make_exception_ptr(PeerError(reason.message, reason.hint));
}

PeerError MessageEngine::differ(const Named& named, const SizesDiffer& error) {
  const Reason reason{named.text + " on axis " + members_.axis + ": " +
                          members_.name(error.peer()) + " " + error.text(),
                      std::string(kSizesHint)};
  break_off(reason);
  return PeerError(reason.message, reason.hint);
}

std::exception_ptr MessageEngine::overdue(const Named& named) {
  return overdue_error(named.text + " on axis " + members_.axis, named.deadline.timeout(),
                       named.record, [this](const Reason& reason) { break_off(reason); });
}

void MessageEngine::break_off(const Reason& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
  }
  board_.post(reason);
  link_->break_off();
}

PeerError MessageEngine::broken(const Named& named) const {
  return PeerError(named.text + " on axis " + members_.axis + ": " + broken_->message,
                   broken_->hint);
}

void MessageEngine::abort(const std::string& reason) {
  break_off(Reason::from(reason));
}

void MessageEngine::take_leave() noexcept {
  constexpr Seconds kPatience{5};
  const Deadline deadline = Deadline::in(kPatience);
  std::vector<std::unique_ptr<Link::Message>> messages;
  const auto ignoring_errors = [](const auto& action) {
    try {
      action();
      // A peer that is gone already has had all it needs.
      // NOLINTNEXTLINE(bugprone-empty-catch)
    } catch (const std::exception&) {
    }
  };
  ignoring_errors([&] {
    const at::Tensor bytes = at::zeros({2}, at::kByte);
    for (const int peer : detail::peers_after(link_->rank(), link_->size())) {
      ignoring_errors([&] {
        messages.push_back(link_->receive(peer, bytes.narrow(0, 0, 1), kLeaveTag));
        messages.push_back(link_->send(peer, bytes.narrow(0, 1, 1), kLeaveTag));
      });
    }
  });
  for (const auto& message : messages) ignoring_errors([&] { message->wait(deadline); });
}

}  // namespace troika
