// What the engine does when an operation fails: finds the culprit, and tells the user and the
// peers.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/failure/diagnosis.h>
#include <troika/comm/failure/overdue.h>
#include <troika/comm/failure/snapshot_collector.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/p2p/work_queue.h>
#include <troika/comm/shm/engine.h>

#include <poll.h>

#include <cstring>

namespace troika::shm {
namespace {

// How long to leave a member that is about to write its record alone.
constexpr Seconds kRecordInterval(1e-3);

}  // namespace

void Engine::run(const OperationContext& context, FunctionRef<void()> body) {
  const auto where = [&] { return describe(context); };
  try {
    body();
  } catch (const TimedOut& error) {
    throw_deadline_error(context, error.missing());
  } catch (const Broken& error) {
    throw_peer_error(context, error);
  } catch (const Mismatch& error) {
    const Diagnosis diagnosis = examine_mismatch(context, error);
    fail({diagnosis.message, diagnosis.hint});
    throw PeerError(where() + ": " + diagnosis.message, diagnosis.hint);
  } catch (const WrongSize& error) {
    const std::string message = members_.name(error.member()) + " sends " +
                                format_bytes(error.theirs()) + " where " +
                                format_bytes(error.ours()) + " are expected";
    fail({message, std::string(kSizesHint)});
    // Whoever comes by moves everybody's messages.
    throw PeerError(
        "exchange " + quote(error.label()) + " on axis " + members_.axis + ": " + message,
        std::string(kSizesHint));
  } catch (const SizesDiffer& error) {
    const std::string message = members_.name(error.peer()) + " " + error.text();
    fail({message, std::string(kSizesHint)});
    throw PeerError(where() + ": " + message, std::string(kSizesHint));
  } catch (const Error& error) {
    fail({where() + ": " + error.what(), error.hint()});
    throw;
  } catch (const std::exception& error) {
    fail({context.text() + " failed: " + error.what(), ""});
    throw;
  }
}

std::string Engine::describe(const OperationContext& context) const {
  return context.text() + " on axis " + members_.axis;
}

static_assert(kPollInterval + 2 * kIndirectReasonTimeout + ShmGroup::kWriterTimeout <
              WorkQueue::kDiagnosisTimeout);

void Engine::await_reason(const OperationContext& context, int held_up) {
  const Deadline enough = Deadline::in(kIndirectReasonTimeout);
  while (!enough.passed()) {
    const auto reason =
        saved_reason(members_, held_up, context.deadline.timeout() + kIndirectReasonTimeout);
    if (reason) throw_abort_reason(context, held_up, *reason);
    try {
      group_.wait([] { return false; }, [] { return std::vector<int>(); },
                  Deadline::in(kPollInterval));
    } catch (const TimedOut&) {  // the time has come to look again. NOLINT(bugprone-empty-catch)
    } catch (const Broken& error) {
      throw_peer_error(context, error);
    }
  }
}

void Engine::throw_abort_reason(const OperationContext& context, int member,
                                const AbortReason& reason) {
  const AbortReason told{
      describe(context) + ": " + members_.name(member) + " gave up: " + reason.message,
      reason.hint};
  fail(told);
  throw PeerError(told.message, told.hint);
}

void Engine::throw_deadline_error(const OperationContext& context,
                                  const std::vector<int>& missing) {
  const Diagnosis diagnosis = examine(context, missing);
  if (diagnosis.held_up) await_reason(context, *diagnosis.held_up);
  fail({diagnosis.message, diagnosis.hint});
  throw DeadlineError(diagnosis.message, diagnosis.hint);
}

void Engine::throw_peer_error(const OperationContext& context, const Broken& error) {
  group_.close();
  const std::string who = error.by() < 0 ? "" : members_.name(error.by()) + " gave up: ";
  const AbortReason reason = AbortReason::from(error.what());
  throw PeerError(describe(context) + ": " + who + reason.message, reason.hint);
}

Diagnosis Engine::examine(const OperationContext& context, std::vector<int> suspects) {
  std::erase(suspects, members_.index);  // this one, which waits
  const BlockedOperation wait{context.text(), context.record.place(), context.record.signature(),
                              context.deadline.timeout(), context.record.group()};
  // All members share this host: nobody has to be asked.
  return diagnose(members_, wait, SnapshotCollector(std::nullopt).collect(members_, Seconds(0)),
                  suspects);
}

// Members tell the others of an operation before they write their record of it: one that has lost
// its core in between is given time. Without records there is the name that it told.
Diagnosis Engine::examine_mismatch(const OperationContext& context, const Mismatch& error) {
  const Deadline enough =
      Deadline::in(members_.recorders.empty() ? Seconds(0) : kIndirectReasonTimeout);
  while (true) {
    const Diagnosis diagnosis = examine(context, {error.member()});
    if (diagnosis.mutual) return diagnosis;
    if (enough.passed()) break;
    std::this_thread::sleep_for(kRecordInterval);
  }
  const bool same = error.theirs() == context.text();
  return {.message = members_.name(error.member()) + " is in " +
                     (same ? "the same operation with other sizes or types" : error.theirs()) +
                     ", and " + members_.name(members_.index) + " in " + context.text(),
          .hint = kSameOperations,
          .mutual = true};
}

std::exception_ptr Engine::overdue(const OperationContext& context) {
  return overdue_error(describe(context), context.deadline.timeout(), context.record,
                       [this](const AbortReason& reason) { fail(reason); });
}

void Engine::abort(const std::string& reason) {
  fail(AbortReason::from(reason));
}

void Engine::fail(const AbortReason& reason) {
  group_.abort(reason.text());
  group_.close();
}

std::string Engine::describe_exit(int member) {
  const auto snapshots = SnapshotCollector(std::nullopt).collect(members_, Seconds(0));
  const auto& snapshot = snapshots[static_cast<std::size_t>(member)];
  return "lost " + members_.name(member) +
         (snapshot ? "; " + describe_last_operation(*snapshot) : "");
}

// Watches for the exit of peers, and receives messages, so that peers never
// find the connection full.
void Engine::watch() {
  constexpr pollfd kNobody{-1, 0, 0};
  std::vector<pollfd> watched = {{stop_watching_.get(), POLLIN, 0}};
  for (const auto& connection : connections_) {
    watched.push_back(connection ? connection->exit_fd() : kNobody);
    watched.push_back(connection ? connection->message_fd() : kNobody);
  }
  while (poll(watched.data(), watched.size(), -1) < 0 || watched[0].revents == 0) {
    for (int member = 0; member < group_.size(); ++member) {
      pollfd& peer = watched[2 * static_cast<std::size_t>(member) + 1];
      pollfd& messages = watched[2 * static_cast<std::size_t>(member) + 2];
      if (messages.revents != 0 && !segments_->take_messages(member)) messages.fd = -1;
      if (peer.revents == 0) continue;
      peer.fd = -1;  // once is enough
      const ControlBlock& control_block = group_.control_block(member);
      if (control_block.has_aborted()) {
        group_.fail(members_.name(member) + " gave up: " + control_block.reason());
      } else if (control_block.left().load() != 0) {
        group_.on_peer_exit(member, AbortReason{describe_exit(member), kHasEnded}.text());
      } else {
        group_.fail(AbortReason{describe_exit(member), kHasEnded}.text());
      }
    }
  }
}

}  // namespace troika::shm
