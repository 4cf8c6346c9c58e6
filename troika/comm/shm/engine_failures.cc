// What the engine does when an operation fails: finds the culprit, and tells the user and the
// peers.
#include <troika/base/error.h>
#include <troika/base/failure_timing.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/p2p/collectives.h>
#include <troika/comm/shm/engine.h>

#include <poll.h>

#include <thread>

namespace troika::shm {
void Engine::translate(const OperationContext& context) {
  try {
    throw;
  } catch (const TimedOut& error) {
    std::rethrow_exception(late(context, error.missing()));
  } catch (const Broken& error) {
    throw_peer_error(context, error);
  } catch (const Mismatch& error) {
    const Diagnosis diagnosis = examine_mismatch(context, error);
    fail(peer_failure(diagnosis.message, diagnosis.hint));
    throw PeerError(describe(context) + ": " + diagnosis.message, diagnosis.hint);
  } catch (const WrongSize& error) {
    const std::string message = members().name(error.member()) + " sends " +
                                format_bytes(error.theirs()) + " where " +
                                format_bytes(error.ours()) + " are expected";
    fail(peer_failure(message, std::string(kSizesHint)));
    // Whoever comes by moves everybody's messages.
    throw PeerError(
        "exchange " + quote(error.label()) + " on axis " + members().axis + ": " + message,
        std::string(kSizesHint));
  } catch (const SizesDiffer& error) {
    const std::string message = members().name(error.peer()) + " " + error.text();
    fail(peer_failure(message, std::string(kSizesHint)));
    throw PeerError(describe(context) + ": " + message, std::string(kSizesHint));
  } catch (const std::exception&) {  // the base's. NOLINT(bugprone-empty-catch)
  }
}

std::optional<Failure> Engine::listen(const OperationContext& context, int, Seconds timeout) {
  try {
    group_.wait([] { return false; }, [] { return std::vector<int>(); }, Deadline::in(timeout));
  } catch (const TimedOut&) {  // the time has come to look again. NOLINT(bugprone-empty-catch)
  } catch (const Broken& error) {
    throw_peer_error(context, error);
  }
  return std::nullopt;
}

void Engine::throw_peer_error(const OperationContext& context, const Broken& error) {
  // Before the error is thrown: the caller owns its tensors again then, and no peer may write to
  // them.
  group_.close();
  const std::string who = error.by() < 0 ? "" : members().name(error.by()) + " gave up: ";
  const Failure reason = decode_failure(error.what());
  throw PeerError(describe(context) + ": " + who + reason.message, reason.hint);
}

// Members tell the others of an operation before they write their record of it: one that has lost
// its core in between is given time. Without records there is the name that it told.
Diagnosis Engine::examine_mismatch(const OperationContext& context, const Mismatch& error) {
  const Deadline enough =
      Deadline::in(members().recorders.empty() ? Seconds(0) : failure_timing::kIndirectReason);
  while (true) {
    const Diagnosis diagnosis = examine(context, {error.member()});
    if (diagnosis.mutual) return diagnosis;
    if (enough.passed()) break;
    std::this_thread::sleep_for(failure_timing::kRecordPoll);
  }
  const bool same = error.theirs() == context.text();
  return {.message = members().name(error.member()) + " is in " +
                     (same ? "the same operation with other sizes or types" : error.theirs()) +
                     ", and " + members().name(members().index) + " in " + context.text(),
          .hint = kSameOperations,
          .mutual = true};
}

std::string Engine::describe_exit(int member) {
  return describe_loss(member, snapshots()[static_cast<std::size_t>(member)]);
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
        group_.fail(members().name(member) + " gave up: " + control_block.reason());
      } else if (control_block.left().load() != 0) {
        group_.on_peer_exit(member, encode(peer_failure(describe_exit(member), kHasEnded)));
      } else {
        group_.fail(encode(peer_failure(describe_exit(member), kHasEnded)));
      }
    }
  }
}

}  // namespace troika::shm
