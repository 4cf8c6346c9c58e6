// What the engine does when something goes wrong: whose fault it is, and who is told.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/collectives.h>
#include <troika/comm/diagnosis.h>
#include <troika/comm/lane.h>
#include <troika/comm/overdue.h>
#include <troika/comm/shm/engine.h>
#include <troika/comm/witness.h>

#include <poll.h>

#include <cstring>

namespace troika::shm {
namespace {

// How long to leave a member that is about to write its record alone.
constexpr Seconds kForARecord(1e-3);

}  // namespace

void Engine::run(const Named& named, FunctionRef<void()> body) {
  const auto where = [&] { return place_of(named); };
  try {
    body();
  } catch (const Late& error) {
    tell_late(named, error.missing());
  } catch (const Broken& error) {
    tell_broken(named, error);
  } catch (const Mismatch& error) {
    const Diagnosis diagnosis = examine_mismatch(named, error);
    give_up({diagnosis.message, diagnosis.hint});
    throw PeerError(where() + ": " + diagnosis.message, diagnosis.hint);
  } catch (const WrongSize& error) {
    const std::string message = members_.name(error.member()) + " sends " +
                                format_bytes(error.theirs()) + " where " +
                                format_bytes(error.ours()) + " are expected";
    give_up({message, std::string(kSizesHint)});
    // Whoever comes by moves everybody's messages.
    throw PeerError(
        "exchange " + quote(error.label()) + " on axis " + members_.axis + ": " + message,
        std::string(kSizesHint));
  } catch (const SizesDiffer& error) {
    const std::string message = members_.name(error.peer()) + " " + error.text();
    give_up({message, std::string(kSizesHint)});
    throw PeerError(where() + ": " + message, std::string(kSizesHint));
  } catch (const Error& error) {
    give_up({where() + ": " + error.what(), error.hint()});
    throw;
  } catch (const std::exception& error) {
    give_up({named.text() + " failed: " + error.what(), ""});
    throw;
  }
}

std::string Engine::place_of(const Named& named) const {
  return named.text() + " on axis " + members_.axis;
}

static_assert(kBetweenLooks + 2 * kForIndirectReasons + Party::kForWriters < Lane::kForTheError);

void Engine::await_reason(const Named& named, int held_up) {
  const Deadline enough = Deadline::in(kForIndirectReasons);
  while (!enough.passed()) {
    const auto reason =
        reason_left(members_, held_up, named.deadline.timeout() + kForIndirectReasons);
    if (reason) tell_reason(named, held_up, *reason);
    try {
      party_.wait([] { return false; }, [] { return std::vector<int>(); },
                  Deadline::in(kBetweenLooks));
    } catch (const Late&) {  // the time has come to look again. NOLINT(bugprone-empty-catch)
    } catch (const Broken& error) {
      tell_broken(named, error);
    }
  }
}

void Engine::tell_reason(const Named& named, int member, const Reason& reason) {
  const Reason told{place_of(named) + ": " + members_.name(member) + " gave up: " + reason.message,
                    reason.hint};
  give_up(told);
  throw PeerError(told.message, told.hint);
}

void Engine::tell_late(const Named& named, const std::vector<int>& missing) {
  const Diagnosis diagnosis = examine(named, missing);
  if (diagnosis.held_up) await_reason(named, *diagnosis.held_up);
  give_up({diagnosis.message, diagnosis.hint});
  throw DeadlineError(diagnosis.message, diagnosis.hint);
}

void Engine::tell_broken(const Named& named, const Broken& error) {
  party_.close();
  const std::string who = error.by() < 0 ? "" : members_.name(error.by()) + " gave up: ";
  const Reason reason = Reason::from(error.what());
  throw PeerError(place_of(named) + ": " + who + reason.message, reason.hint);
}

Diagnosis Engine::examine(const Named& named, std::vector<int> suspects) {
  std::erase(suspects, members_.index);  // this one, which waits
  const Wait wait{named.text(), named.record.place(), named.record.signature(),
                  named.deadline.timeout(), named.record.group()};
  // All members share this host: nobody has to be asked.
  return diagnose(members_, wait, Witness(std::nullopt).look(members_, Seconds(0)), suspects);
}

// Members tell the others of an operation before they write their record of it: one that has lost
// its core in between is given time. Without records there is the name that it told.
Diagnosis Engine::examine_mismatch(const Named& named, const Mismatch& error) {
  const Deadline enough =
      Deadline::in(members_.recorders.empty() ? Seconds(0) : kForIndirectReasons);
  while (true) {
    const Diagnosis diagnosis = examine(named, {error.member()});
    if (diagnosis.mutual) return diagnosis;
    if (enough.passed()) break;
    std::this_thread::sleep_for(kForARecord);
  }
  const bool same = error.theirs() == named.text();
  return {.message = members_.name(error.member()) + " is in " +
                     (same ? "the same operation with other sizes or types" : error.theirs()) +
                     ", and " + members_.name(members_.index) + " in " + named.text(),
          .hint = kSameOperations,
          .mutual = true};
}

std::exception_ptr Engine::overdue(const Named& named) {
  return overdue_error(place_of(named), named.deadline.timeout(), named.record,
                       [this](const Reason& reason) { give_up(reason); });
}

void Engine::abort(const std::string& reason) {
  give_up(Reason::from(reason));
}

void Engine::give_up(const Reason& reason) {
  party_.give_up(reason.text());
  party_.close();
}

std::string Engine::death_of(int member) {
  const auto snapshots = Witness(std::nullopt).look(members_, Seconds(0));
  const auto& snapshot = snapshots[static_cast<std::size_t>(member)];
  return "lost " + members_.name(member) + (snapshot ? "; " + last_deed(*snapshot) : "");
}

// Tells of deaths: a peer that has ended makes no more news. Takes parcels, so that peers never
// find the connection full.
void Engine::watch() {
  constexpr pollfd kNobody{-1, 0, 0};
  std::vector<pollfd> watched = {{stop_watching_.get(), POLLIN, 0}};
  for (const auto& wire : wires_) {
    watched.push_back(wire ? wire->death() : kNobody);
    watched.push_back(wire ? wire->parcels() : kNobody);
  }
  while (poll(watched.data(), watched.size(), -1) < 0 || watched[0].revents == 0) {
    for (int member = 0; member < party_.size(); ++member) {
      pollfd& peer = watched[2 * static_cast<std::size_t>(member) + 1];
      pollfd& parcels = watched[2 * static_cast<std::size_t>(member) + 2];
      if (parcels.revents != 0 && !segments_->take_parcels(member)) parcels.fd = -1;
      if (peer.revents == 0) continue;
      peer.fd = -1;  // once is enough
      const Board& board = party_.board(member);
      if (board.has_given_up()) {
        party_.lose(members_.name(member) + " gave up: " + board.reason());
      } else if (board.left().load() != 0) {
        party_.miss(member, Reason{death_of(member), kHasEnded}.text());
      } else {
        party_.lose(Reason{death_of(member), kHasEnded}.text());
      }
    }
  }
}

}  // namespace troika::shm
