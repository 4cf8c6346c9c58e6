#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/units.h>
#include <troika/comm/engine_base.h>

#include <thread>
#include <utility>

namespace troika {
EngineBase::EngineBase(Parts parts)
    : name_(std::move(parts.name)),
      members_(std::move(parts.members)),
      snapshot_collector_(std::move(parts.snapshot_collector)),
      abort_store_(std::move(parts.abort_store)),
      queue_(std::make_unique<WorkQueue>(WorkQueue::Order::kAsAdded)) {
  if (!abort_store_) return;
  abort_watcher_ = std::make_unique<AbortWatcher>(
      *abort_store_, [this](int member, const Failure& reason) { fail(quoted(member, reason)); });
}

void EngineBase::stop() {
  // The queues end first: for tasks that hang in them the watcher still breaks the connections.
  queue_.reset();
  queue_beside_.reset();
  abort_watcher_.reset();
}

Failure EngineBase::quoted(int member, const Failure& reason) const {
  return peer_failure(members_.name(member) + " gave up: " + reason.message, reason.hint);
}

std::string EngineBase::describe(const OperationContext& context) const {
  return context.text() + " on axis " + members_.axis;
}

Work EngineBase::enqueue(WorkQueue::Job job, const OwnedContext& context) {
  job.overdue = [this, context] { return overdue(context.get()); };
  return queue_->add(std::move(job));
}

Work EngineBase::enqueue_beside(WorkQueue::Job job, const OwnedContext& context) {
  if (!queue_beside_) queue_beside_ = std::make_unique<WorkQueue>(WorkQueue::Order::kIndependent);
  job.overdue = [this, context] { return overdue(context.get()); };
  return queue_beside_->add(std::move(job));
}

void EngineBase::throw_users_error(const OperationContext& context) {
  translate(context);
  try {
    throw;
  } catch (const Error& error) {
    Failure failure = failure_of(error);
    failure.message = describe(context) + ": " + failure.message;
    fail(failure);
    throw;
  } catch (const std::exception& error) {
    fail(peer_failure(context.text() + " failed: " + error.what()));
    throw;
  }
}

void EngineBase::fail(const Failure& reason) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = !failure_;
    // The first failure is the cause. Those that follow from it, such as connections that it
    // breaks, must not replace its reason.
    if (is_first) failure_ = reason;
  }
  if (is_first) {
    // Posted before the connections break: a peer that loses its connection asks for the reason at
    // once.
    if (abort_store_) abort_store_->post(reason);
    break_connections(reason);
  }
  await_writers();
}

PeerError EngineBase::failed_with(const OperationContext& context, const std::string& what,
                                  const std::string& hint) {
  const std::string message = describe(context) + ": " + what;
  fail(peer_failure(message, hint));
  return PeerError(message, hint);
}

bool EngineBase::has_failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

void EngineBase::throw_if_failed(const OperationContext& context) const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw PeerError(describe(context) + ": " + failure_->message, failure_->hint);
}

std::exception_ptr EngineBase::late(const OperationContext& context, std::vector<int> suspects) {
  const Diagnosis diagnosis = examine(context, suspects);
  if (diagnosis.member_to_ask) {
    const int member = *diagnosis.member_to_ask;
    if (const auto reason = await_reason(context, member)) {
      const Failure told = quoted(member, *reason);
      return std::make_exception_ptr(failed_with(context, told.message, told.hint));
    }
  }
  fail(peer_failure(diagnosis.message, diagnosis.hint));
  // Of members in different operations each names the other: what to do says more.
  if (diagnosis.mutual || suspects.empty()) {
    return std::make_exception_ptr(DeadlineError(diagnosis.message, diagnosis.hint));
  }
  auto theirs = reason_of(suspects.front(), failure_timing::kPeerReason);
  const std::string peer = members_.name(suspects.front());
  // What it was told of itself, by this member or another, is no reason of its own.
  if (theirs && theirs->message.find(peer) != std::string::npos) theirs.reset();
  return std::make_exception_ptr(
      DeadlineError(diagnosis.message,
                    theirs ? peer + " gave up on its own: " + theirs->message : diagnosis.hint));
}

Diagnosis EngineBase::examine(const OperationContext& context, std::vector<int> suspects) {
  std::erase(suspects, members_.index);  // this one, which waits
  const BlockedOperation wait{context.text(), context.record.place(), context.record.signature(),
                              context.deadline.timeout(), context.record.group()};
  return diagnose(members_, wait, snapshots(), suspects);
}

std::vector<std::optional<RankSnapshot>> EngineBase::snapshots() {
  return snapshot_collector_.collect(members_, failure_timing::kSnapshots);
}

std::string EngineBase::describe_loss(int member, const std::optional<RankSnapshot>& last) const {
  return "lost " + members_.name(member) + (last ? "; " + describe_last_operation(*last) : "");
}

std::optional<Failure> EngineBase::reason_of(int member, Seconds timeout) {
  return abort_store_ ? abort_store_->reason_of(member, timeout) : std::nullopt;
}

std::optional<Failure> EngineBase::listen(const OperationContext&, int member, Seconds timeout) {
  return reason_of(member, timeout);
}

std::optional<Failure> EngineBase::await_reason(const OperationContext& context, int member) {
  const Deadline enough = Deadline::in(failure_timing::kIndirectReason);
  const Seconds recently = context.deadline.timeout() + failure_timing::kIndirectReason;
  while (!enough.passed()) {
    if (auto reason = saved_reason(members_, member, recently)) return reason;
    const Deadline look = Deadline::in(failure_timing::kReasonPoll);
    if (auto reason = listen(context, member, look.left())) return reason;
    // listen() may return at once, where there is no store: the pause bounds how often files are
    // read.
    std::this_thread::sleep_for(look.left());
  }
  return std::nullopt;
}

// Its error is left for the launcher before it breaks the group, for what is under way then fails
// of the same reason.
std::exception_ptr EngineBase::overdue(const OperationContext& context) {
  const std::string message = describe(context) + ": an earlier operation took more than " +
                              format_duration(context.deadline.timeout().count());
  const std::exception_ptr error = std::make_exception_ptr(DeadlineError(message));
  context.record.record_error(error);
  fail(peer_failure(message));
  return error;
}

}  // namespace troika
