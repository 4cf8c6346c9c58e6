#include <troika/base/failure_timing.h>
#include <troika/comm/p2p/pending_transfers.h>
#include <troika/comm/p2p/point_to_point_engine.h>

#include <ATen/ATen.h>

#include <exception>
#include <utility>

namespace troika {
namespace {

// Exchanges and the shutdown have a tag each, collectives the upper half of the range.
constexpr std::uint32_t kExchangeTag = 1;
constexpr std::uint32_t kShutdownTag = 2;
constexpr std::uint32_t kCollectiveTags = std::uint32_t{1} << 30;

bool is_there(const std::optional<RankSnapshot>& snapshot) {
  return snapshot && snapshot->process != ProcessState::kUnknown &&
         snapshot->process != ProcessState::kEnded;
}

}  // namespace

PointToPointEngine::PointToPointEngine(std::string name, Members members,
                                       std::unique_ptr<Transport> transport, AbortStore abort_store,
                                       SnapshotCollector snapshot_collector)
    : BlockingEngine({std::move(name), std::move(members), std::move(snapshot_collector),
                      std::move(abort_store)}),
      transport_(std::move(transport)),
      collectives_(*transport_),
      exceptions_(std::uncaught_exceptions()) {}

PointToPointEngine::~PointToPointEngine() {
  stop();
  if (has_failed()) return;
  if (std::uncaught_exceptions() == exceptions_) {
    shutdown();
  } else {  // its process may stay, as one that waits for the end of MPI does
    fail(peer_failure("it has met an error of its own", "its last lines say why"));
  }
}

void PointToPointEngine::run_all_reduce(const at::Tensor& tensor, ReduceOp op,
                                        const OperationContext& context) {
  collectives_.all_reduce(tensor, op, next_scope(context));
}

void PointToPointEngine::run_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                            Counts counts, ReduceOp op,
                                            const OperationContext& context) {
  collectives_.reduce_scatter(output, input, counts, op, next_scope(context));
}

void PointToPointEngine::run_all_gather(const at::Tensor& output, const at::Tensor& input,
                                        Counts counts, const OperationContext& context) {
  collectives_.all_gather(output, input, counts, next_scope(context));
}

void PointToPointEngine::run_all_to_all(const at::Tensor& output, Counts output_counts,
                                        const at::Tensor& input, Counts input_counts,
                                        const OperationContext& context) {
  collectives_.all_to_all(output, output_counts, input, input_counts, next_scope(context));
}

void PointToPointEngine::run_broadcast(const at::Tensor& tensor, int root,
                                       const OperationContext& context) {
  collectives_.broadcast(tensor, root, next_scope(context));
}

void PointToPointEngine::run_gather(const at::Tensor& output, const at::Tensor& input, int root,
                                    const OperationContext& context) {
  collectives_.gather(output, input, root, next_scope(context));
}

void PointToPointEngine::run_scatter(const at::Tensor& output, const at::Tensor& input, int root,
                                     const OperationContext& context) {
  collectives_.scatter(output, input, root, next_scope(context));
}

void PointToPointEngine::run_barrier(const OperationContext& context) {
  collectives_.barrier(next_scope(context));
}

// All messages start now, in the caller's thread: an exchange never waits for an earlier one.
Work PointToPointEngine::exchange(std::span<const Transfer> transfers, const Call& call) {
  const OwnedContext owned(OperationContext("exchange", call));
  const OperationContext context = owned.get();
  throw_if_failed(context);
  auto pending =
      std::make_shared<detail::PendingTransfers>(*transport_, call.deadline, call.record);
  run_watched(context, [&] {
    for (const Transfer& transfer : transfers) {
      const at::Tensor bytes = detail::as_bytes(transfer.tensor);
      if (transfer.direction == Transfer::Direction::kReceive) {
        pending->receive(transfer.peer, bytes, kExchangeTag);
      } else {
        pending->send(transfer.peer, bytes, kExchangeTag);
      }
    }
  });
  WorkQueue::Job job{.deadline = call.deadline, .run = {}, .overdue = {}};
  job.run = [this, owned, pending] {
    throw_if_failed(owned.get());
    run_watched(owned.get(), [&] { pending->wait(); });
  };
  return enqueue_beside(std::move(job), owned);
}

// The tag counts the operations, and holds a trace of what each one is: members that do not do the
// same thing find nothing to match and run into the deadline, rather than take each other's bytes.
OperationScope PointToPointEngine::next_scope(const OperationContext& context) {
  constexpr std::uint32_t kCounterBits = 20;
  // The queue runs collectives in the order in which they were called, so that the numbers agree on
  // all members.
  const auto number = static_cast<std::uint32_t>(operations_++ % (1u << kCounterBits));
  const auto trace = static_cast<std::uint32_t>(context.record.signature() >> 55);  // 9 bits
  const std::uint32_t tag = kCollectiveTags | trace << (kCounterBits + 1) | number << 1;
  return {tag, context.deadline, context.record};
}

void PointToPointEngine::translate(const OperationContext& context) {
  try {
    throw;
  } catch (const TransportError& error) {
    throw_if_failed(context);
    std::rethrow_exception(error_for(context, error));
  } catch (const SizesDiffer& error) {
    throw failed_with(context, members().name(error.peer()) + " " + error.text(),
                      std::string(kSizesHint));
  } catch (const std::exception&) {  // the base's. NOLINT(bugprone-empty-catch)
  }
}

std::exception_ptr PointToPointEngine::error_for(const OperationContext& context,
                                                 const TransportError& error) {
  switch (error.kind()) {
    case TransportError::Kind::kDeadline:
      return late(context, {error.peer()});
    case TransportError::Kind::kWrongSize:
      return std::make_exception_ptr(
          failed_with(context, members().name(error.peer()) + " " + error.what(), kSameOperations));
    case TransportError::Kind::kEnded:
      return std::make_exception_ptr(
          failed_with(context, error.what(), "close sessions before what carries them ends"));
    case TransportError::Kind::kBroken:
      break;
  }
  return lost(context, error);
}

std::exception_ptr PointToPointEngine::lost(const OperationContext& context,
                                            const TransportError& error) {
  const std::string peer = members().name(error.peer());
  std::string lost = "lost " + peer, hint = kHasEnded;
  auto theirs = reason_of(error.peer(), failure_timing::kPeerReason);
  if (!theirs) {
    const auto all = snapshots();
    const auto& snapshot = all[static_cast<std::size_t>(error.peer())];
    lost = describe_loss(error.peer(), snapshot);
    if (is_there(snapshot)) {
      theirs = reason_of(error.peer(), failure_timing::kSlowPeerReason);
      hint =
          "its process is there, the connection to it is not: the network between the hosts or its "
          "last lines may say why";
    }
  }
  const std::string what = theirs ? peer + " gave up: " + theirs->message : lost;
  return std::make_exception_ptr(failed_with(context, what, theirs ? theirs->hint : hint));
}

void PointToPointEngine::break_connections(const Failure&) {
  transport_->abort();
}

void PointToPointEngine::shutdown() noexcept {
  const Deadline deadline = Deadline::in(failure_timing::kShutdown);
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
        // A member leaves once all others have come to their end: what it has sent may still be on
        // its way to them, and a connection that closes would lose it.
        messages.push_back(transport_->receive(peer, bytes.narrow(0, 0, 1), kShutdownTag));
        messages.push_back(transport_->send(peer, bytes.narrow(0, 1, 1), kShutdownTag));
      });
    }
  });
  for (const auto& message : messages) ignoring_errors([&] { message->wait(deadline); });
}

}  // namespace troika
