#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/failure/diagnosis.h>
#include <troika/comm/failure/overdue.h>
#include <troika/comm/p2p/pending_transfers.h>
#include <troika/comm/p2p/point_to_point_engine.h>

#include <ATen/ATen.h>

#include <exception>
#include <functional>
#include <thread>

namespace troika {
namespace {

// Exchanges and the shutdown have a tag each, collectives the upper half of the range.
constexpr std::uint32_t kExchangeTag = 1;
constexpr std::uint32_t kShutdownTag = 2;
constexpr std::uint32_t kCollectiveTags = std::uint32_t{1} << 30;

// The member that broke the connection publishes its reason just after.
constexpr Seconds kReasonTimeout{0.25};
// For what can be seen on other hosts.
constexpr Seconds kSnapshotTimeout{1};
// Or it looks for the reason itself, as late() does.
constexpr Seconds kSlowReasonTimeout = kIndirectReasonTimeout + 2 * kReasonTimeout;
static_assert(kSnapshotTimeout + kIndirectReasonTimeout + kReasonTimeout <
              WorkQueue::kDiagnosisTimeout);
static_assert(kReasonTimeout + kSnapshotTimeout + kSlowReasonTimeout <
              WorkQueue::kDiagnosisTimeout);

bool is_there(const std::optional<RankSnapshot>& snapshot) {
  return snapshot && snapshot->process != ProcessState::kUnknown &&
         snapshot->process != ProcessState::kEnded;
}

}  // namespace

PointToPointEngine::PointToPointEngine(std::string_view name, Members members,
                                       std::unique_ptr<Transport> transport, AbortStore abort_store,
                                       SnapshotCollector snapshot_collector)
    : name_(name),
      members_(std::move(members)),
      transport_(std::move(transport)),
      abort_store_(std::move(abort_store)),
      snapshot_collector_(std::move(snapshot_collector)),
      collectives_(*transport_),
      exceptions_(std::uncaught_exceptions()),
      collective_queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kAsAdded)),
      exchange_queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kIndependent)),
      abort_watcher_(std::make_unique<AbortWatcher>(
          abort_store_, [this](int member, const AbortReason& reason) {
            fail({members_.name(member) + " gave up: " + reason.message, reason.hint});
          })) {}

PointToPointEngine::~PointToPointEngine() {
  collective_queue_.reset();
  exchange_queue_.reset();
  abort_watcher_.reset();
  if (broken_) return;
  if (std::uncaught_exceptions() == exceptions_) {
    shutdown();
  } else {  // its process may stay, as one that waits for the end of MPI does
    fail({"it has met an error of its own", "its last lines say why"});
  }
}

Work PointToPointEngine::all_reduce(const at::Tensor& tensor, ReduceOp op, const Call& call) {
  return collective("all_reduce", call, [=, this](const OperationScope& scope) {
    collectives_.all_reduce(tensor, op, scope);
  });
}

Work PointToPointEngine::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                        std::span<const std::int64_t> counts, ReduceOp op,
                                        const Call& call) {
  return collective(
      "reduce_scatter", call,
      [=, this, counts = std::vector(counts.begin(), counts.end())](const OperationScope& scope) {
        collectives_.reduce_scatter(output, input, counts, op, scope);
      });
}

Work PointToPointEngine::all_gather(const at::Tensor& output, const at::Tensor& input,
                                    std::span<const std::int64_t> counts, const Call& call) {
  return collective(
      "all_gather", call,
      [=, this, counts = std::vector(counts.begin(), counts.end())](const OperationScope& scope) {
        collectives_.all_gather(output, input, counts, scope);
      });
}

Work PointToPointEngine::all_to_all(const at::Tensor& output,
                                    std::span<const std::int64_t> output_counts,
                                    const at::Tensor& input,
                                    std::span<const std::int64_t> input_counts, const Call& call) {
  return collective("all_to_all", call,
                    [=, this, to = std::vector(input_counts.begin(), input_counts.end()),
                     from = std::vector(output_counts.begin(), output_counts.end())](
                        const OperationScope& scope) {
                      collectives_.all_to_all(output, from, input, to, scope);
                    });
}

Work PointToPointEngine::broadcast(const at::Tensor& tensor, int root, const Call& call) {
  return collective("broadcast", call, [=, this](const OperationScope& scope) {
    collectives_.broadcast(tensor, root, scope);
  });
}

Work PointToPointEngine::gather(const at::Tensor& output, const at::Tensor& input, int root,
                                const Call& call) {
  return collective("gather", call, [=, this](const OperationScope& scope) {
    collectives_.gather(output, input, root, scope);
  });
}

Work PointToPointEngine::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                 const Call& call) {
  return collective("scatter", call, [=, this](const OperationScope& scope) {
    collectives_.scatter(output, input, root, scope);
  });
}

Work PointToPointEngine::barrier(const Call& call) {
  return collective("barrier", call,
                    [this](const OperationScope& scope) { collectives_.barrier(scope); });
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work PointToPointEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const OperationContext what = context_of("exchange", call);
  throw_if_broken(what);
  auto pending =
      std::make_shared<detail::PendingTransfers>(*transport_, call.deadline, call.record);
  run(what, [&] {
    for (const Transfer& transfer : transfers) {
      const at::Tensor bytes = detail::as_bytes(transfer.tensor);
      if (transfer.direction == Transfer::Direction::kReceive) {
        pending->receive(transfer.peer, bytes, kExchangeTag);
      } else {
        pending->send(transfer.peer, bytes, kExchangeTag);
      }
    }
  });
  return add(*exchange_queue_, what, [pending] { pending->wait(); });
}

PointToPointEngine::OperationContext PointToPointEngine::context_of(std::string_view operation,
                                                                    const Call& call) {
  return {std::string(operation) + " " + quote(call.label), call.deadline, call.record};
}

Work PointToPointEngine::collective(std::string_view operation, const Call& call,
                                    std::function<void(const OperationScope&)> body) {
  const OperationContext what = context_of(operation, call);
  throw_if_broken(what);
  const OperationScope scope{next_tag(call.record.signature()), call.deadline, call.record};
  return add(*collective_queue_, what, [scope, body = std::move(body)] { body(scope); });
}

Work PointToPointEngine::add(WorkQueue& queue, const OperationContext& context,
                             std::function<void()> body) {
  const Deadline deadline = context.deadline;
  return queue.add({.deadline = deadline,
                    .run = [this, context, body = std::move(body)] { run(context, body); },
                    .overdue = [this, context] { return overdue(context); }});
}

// Counts the operations, and holds a trace of what each one is: members that do not do the same
// thing find nothing to match and run into the deadline, rather than take each other's bytes.
std::uint32_t PointToPointEngine::next_tag(std::uint64_t signature) {
  constexpr std::uint32_t kCounterBits = 20;
  const auto number = static_cast<std::uint32_t>(operations_++ % (1u << kCounterBits));
  const auto trace = static_cast<std::uint32_t>(signature >> 55);  // 9 bits
  return kCollectiveTags | trace << (kCounterBits + 1) | number << 1;
}

void PointToPointEngine::run(const OperationContext& context, const std::function<void()>& body) {
  throw_if_broken(context);
  const AbortWatcher::ActiveOperation active(*abort_watcher_);
  try {
    body();
  } catch (const TransportError& error) {
    std::rethrow_exception(error_for(context, error));
  } catch (const SizesDiffer& error) {
    throw differ(context, error);
  } catch (const std::exception& error) {
    fail({context.text + " failed: " + error.what(), ""});
    throw;
  }
}

void PointToPointEngine::throw_if_broken(const OperationContext& context) {
  const std::lock_guard lock(mutex_);
  if (broken_) throw broken(context);
}

std::exception_ptr PointToPointEngine::error_for(const OperationContext& context,
                                                 const TransportError& error) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return std::make_exception_ptr(broken(context));
  }
  switch (error.kind()) {
    case TransportError::Kind::kDeadline:
      return late(context, error);
    case TransportError::Kind::kWrongSize:
      return wrong_size(context, error);
    case TransportError::Kind::kBroken:
      break;
  }
  return lost(context, error);
}

std::exception_ptr PointToPointEngine::late(const OperationContext& context,
                                            const TransportError& error) {
  const BlockedOperation wait{context.text, context.record.place(), context.record.signature(),
                              context.deadline.timeout(), context.record.group()};
  const Diagnosis diagnosis = diagnose(
      members_, wait, snapshot_collector_.collect(members_, kSnapshotTimeout), {error.peer()});
  if (diagnosis.held_up) {
    const int member = *diagnosis.held_up;
    if (const auto reason = await_reason(member, wait.waited)) {
      const AbortReason told{context.text + " on axis " + members_.axis + ": " +
                                 members_.name(member) + " gave up: " + reason->message,
                             reason->hint};
      fail(told);
      return std::make_exception_ptr(PeerError(told.message, told.hint));
    }
  }
  fail({diagnosis.message, diagnosis.hint});
  // Of members in different operations each names the other: what to do says more.
  auto theirs =
      diagnosis.mutual ? std::nullopt : abort_store_.reason_of(error.peer(), kReasonTimeout);
  const std::string peer = members_.name(error.peer());
  // What it was told of itself, by this member or another, is no reason of its own.
  if (theirs && theirs->message.find(peer) != std::string::npos) theirs.reset();
  return std::make_exception_ptr(
      DeadlineError(diagnosis.message,
                    theirs ? peer + " gave up on its own: " + theirs->message : diagnosis.hint));
}

std::optional<AbortReason> PointToPointEngine::await_reason(int member, Seconds waited) {
  const Deadline enough = Deadline::in(kIndirectReasonTimeout);
  while (!enough.passed()) {
    if (auto reason = saved_reason(members_, member, waited + kIndirectReasonTimeout))
      return reason;
    const Deadline look = Deadline::in(kPollInterval);
    if (auto reason = abort_store_.reason_of(member, look.left())) return reason;
    std::this_thread::sleep_for(look.left());
  }
  return std::nullopt;
}

std::exception_ptr PointToPointEngine::wrong_size(const OperationContext& context,
                                                  const TransportError& error) {
  const AbortReason reason{context.text + " on axis " + members_.axis + ": " +
                               members_.name(error.peer()) + " " + error.what(),
                           kSameOperations};
  fail(reason);
  return std::make_exception_ptr(PeerError(reason.message, reason.hint));
}

std::exception_ptr PointToPointEngine::lost(const OperationContext& context,
                                            const TransportError& error) {
  const std::string peer = members_.name(error.peer());
  std::string lost = "lost " + peer, hint = kHasEnded;
  auto theirs = abort_store_.reason_of(error.peer(), kReasonTimeout);
  if (!theirs) {
    const auto snapshots = snapshot_collector_.collect(members_, kSnapshotTimeout);
    const auto& snapshot = snapshots[static_cast<std::size_t>(error.peer())];
    if (snapshot) lost += "; " + describe_last_operation(*snapshot);
    if (is_there(snapshot)) {
      theirs = abort_store_.reason_of(error.peer(), kSlowReasonTimeout);
      hint =
          "its process is there, the connection to it is not: the network between the hosts or its "
          "last lines may say why";
    }
  }
  const std::string what = theirs ? peer + " gave up: " + theirs->message : lost;
  const AbortReason reason{context.text + " on axis " + members_.axis + ": " + what,
                           theirs ? theirs->hint : hint};
  fail(reason);
  return std::make_exception_ptr(PeerError(reason.message, reason.hint));
}

PeerError PointToPointEngine::differ(const OperationContext& context, const SizesDiffer& error) {
  const AbortReason reason{context.text + " on axis " + members_.axis + ": " +
                               members_.name(error.peer()) + " " + error.text(),
                           std::string(kSizesHint)};
  fail(reason);
  return PeerError(reason.message, reason.hint);
}

std::exception_ptr PointToPointEngine::overdue(const OperationContext& context) {
  return overdue_error(context.text + " on axis " + members_.axis, context.deadline.timeout(),
                       context.record, [this](const AbortReason& reason) { fail(reason); });
}

void PointToPointEngine::fail(const AbortReason& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = reason;
  }
  abort_store_.post(reason);
  transport_->abort();
}

PeerError PointToPointEngine::broken(const OperationContext& context) const {
  return PeerError(context.text + " on axis " + members_.axis + ": " + broken_->message,
                   broken_->hint);
}

void PointToPointEngine::abort(const std::string& reason) {
  fail(AbortReason::from(reason));
}

void PointToPointEngine::shutdown() noexcept {
  constexpr Seconds kShutdownTimeout{5};
  const Deadline deadline = Deadline::in(kShutdownTimeout);
  std::vector<std::unique_ptr<Transport::Message>> messages;
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
    for (const int peer : detail::peers_after(transport_->rank(), transport_->size())) {
      ignoring_errors([&] {
        messages.push_back(transport_->receive(peer, bytes.narrow(0, 0, 1), kShutdownTag));
        messages.push_back(transport_->send(peer, bytes.narrow(0, 1, 1), kShutdownTag));
      });
    }
  });
  for (const auto& message : messages) ignoring_errors([&] { message->wait(deadline); });
}

}  // namespace troika
