#include <troika/base/units.h>
#include <troika/comm/failure/diagnosis.h>
#include <troika/observe/recorder_format.h>
#include <troika/rendezvous/agreement.h>

#include <algorithm>

namespace troika {
namespace {

// Where a rank keeps no flight recorder.
constexpr const char* kToRecord =
    "with flight recorders (SessionOptions::recorders, or the variable TROIKA_RECORDERS=DIR) it is "
    "also told what that rank is in";

// What a rank that is only slow may exceed.
const std::string kTimeout =
    "the time-out of collectives (comm.timeout_seconds, SessionOptions::timeout, `troika launch "
    "--timeout`)";

// A name such as "all_reduce 'loss'" as name_of() gives it for what a recorder has kept of it.
std::string name_once_recorded(const std::string& name) {
  using recorder_format::Record;
  const std::size_t quote = name.find(" '");
  if (quote == std::string::npos || !name.ends_with('\'') || name.size() < quote + 3) return name;
  RecordedOperation kept;
  kept.operation =
      recorder_format::as_read(std::string_view(name).substr(0, quote), sizeof(Record::operation));
  kept.label = recorder_format::as_read(
      std::string_view(name).substr(quote + 2, name.size() - quote - 3), sizeof(Record::label));
  return name_of(kept);
}

class DiagnosisBuilder {
 public:
  DiagnosisBuilder(const Members& members, const BlockedOperation& wait,
                   std::span<const std::optional<RankSnapshot>> snapshots)
      : members_(members),
        wait_(wait),
        snapshots_(snapshots),
        axis_(recorder_format::as_read(members.axis, sizeof(recorder_format::Record::axis))) {}

  Diagnosis build(const std::vector<int>& suspects) const {
    std::vector<int> absent, elsewhere;
    for (int member = 0; member < members_.size() && wait_.place > 0; ++member) {
      if (member == members_.index || !recorded(member)) continue;
      const RecordedOperation* theirs = at_our_place(member);
      if (theirs == nullptr) {
        if (!is_ahead(member)) absent.push_back(member);
      } else if (theirs->signature != wait_.signature) {
        elsewhere.push_back(member);
      }
    }
    if (!elsewhere.empty()) return in_another_operation(elsewhere.front());
    if (!absent.empty()) return not_entered(absent);
    return silent(suspects);
  }

 private:
  [[nodiscard]] const RankSnapshot* snapshot(int member) const {
    const auto& each = snapshots_[static_cast<std::size_t>(member)];
    return each ? &*each : nullptr;
  }

  // Whether it is known what a member has entered, not only what its process does.
  [[nodiscard]] bool recorded(int member) const {
    return snapshot(member) && snapshot(member)->recorded();
  }

  [[nodiscard]] bool of_our_group(const RecordedOperation& operation) const {
    return operation.group == wait_.group && operation.axis == axis_ &&
           operation.generation == static_cast<std::uint32_t>(members_.generation);  // as recorded
  }

  // What a member has entered as the group's operation of the same number.
  [[nodiscard]] const RecordedOperation* at_our_place(int member) const {
    return at_place(member, wait_.place);
  }
  [[nodiscard]] const RecordedOperation* at_place(int member, std::uint64_t place) const {
    const auto& operations = snapshot(member)->recording.operations;
    const auto found = std::ranges::find_if(operations, [&](const RecordedOperation& operation) {
      return operation.place == place && of_our_group(operation);
    });
    return found == operations.end() ? nullptr : &*found;
  }

  // Whether a member is done with our operation and in a later one: the record of ours may have
  // made room for others by now.
  [[nodiscard]] bool is_ahead(int member) const {
    if (!recorded(member) || wait_.place == 0) return false;
    const RecordedOperation* theirs = at_our_place(member);
    if (theirs != nullptr && theirs->state != RecordedOperation::State::kFinished) return false;
    return std::ranges::any_of(snapshot(member)->recording.operations,
                               [&](const RecordedOperation& operation) {
                                 return operation.place > wait_.place && of_our_group(operation);
                               });
  }

  [[nodiscard]] bool is_stopped(int member) const {
    return snapshot(member) && snapshot(member)->process == ProcessState::kStopped &&
           !is_ahead(member);
  }

  // This member, and those that are known to be in the same operation, but for one.
  [[nodiscard]] std::vector<int> waiting(int except = -1) const {
    std::vector<int> ranks;
    for (int member = 0; member < members_.size(); ++member) {
      bool waits = member == members_.index;
      if (!waits && member != except && snapshot(member) && wait_.place > 0) {
        const RecordedOperation* theirs = at_our_place(member);
        waits = theirs != nullptr && theirs->signature == wait_.signature &&
                theirs->state != RecordedOperation::State::kFinished;
      }
      if (waits) ranks.push_back(members_.ranks[static_cast<std::size_t>(member)]);
    }
    return ranks;
  }

  [[nodiscard]] std::string who_has_waited(int except = -1) const {
    const std::vector<int> ranks = waiting(except);
    return (ranks.size() == 1 ? "rank " + list_ranks(ranks) + " has"
                              : "ranks " + list_ranks(ranks) + " have") +
           " waited " + format_duration(wait_.waited.count());
  }

  [[nodiscard]] std::string where() const { return wait_.name + " on axis " + members_.axis; }

  [[nodiscard]] Diagnosis not_entered(const std::vector<int>& absent) const {
    const int first = culprit_of(absent);
    std::string who = members_.name(first);
    if (absent.size() > 1) {
      who += " and " + std::to_string(absent.size() - 1) +
             (absent.size() == 2 ? " other rank" : " other ranks");
    }
    const std::string divergence = divergence_of(first);
    const bool diverged = !divergence.empty() && !is_stopped(first);
    return {who + (absent.size() == 1 ? " has" : " have") + " not entered " + where() + "; " +
                who_has_waited() + "; " + describe_last_operation(*snapshot(first)) + divergence,
            diverged ? kSameOperations : about_process(first), if_held_up(first)};
  }

  // Where a member that lacks an operation has left one out: it went on with the next of the same
  // kind and shape, which only the label tells. Empty if nothing is known of that.
  [[nodiscard]] std::string divergence_of(int member) const {
    if (!recorded(members_.index)) return "";
    const RecordedOperation *ours = nullptr, *theirs = nullptr;
    for (const RecordedOperation& own : snapshot(members_.index)->recording.operations) {
      if (own.place == 0 || own.place >= wait_.place || !of_our_group(own)) continue;
      const RecordedOperation* other = at_place(member, own.place);
      if (other == nullptr || other->label == own.label) continue;
      if (ours == nullptr || own.place < ours->place) {
        ours = &own;
        theirs = other;
      }
    }
    if (ours == nullptr) return "";
    return "; its operation " + std::to_string(ours->place) + " on axis " + members_.axis +
           " was " + name_of(*theirs) + ", where rank " +
           std::to_string(members_.ranks[static_cast<std::size_t>(members_.index)]) + " was in " +
           name_of(*ours);
  }

  // Of those that have not come: one that is stopped, else one that waits for nobody.
  [[nodiscard]] int culprit_of(const std::vector<int>& absent) const {
    auto found = std::ranges::find_if(absent, [&](int member) { return is_stopped(member); });
    if (found != absent.end()) return *found;
    found = std::ranges::find_if(absent, [&](int member) { return !is_held_up(member); });
    return found != absent.end() ? *found : absent.front();
  }

  // Whether a member may be where it is because of somebody else: it is in an operation that is not
  // one of our group's collectives, or is an earlier one, or what it did last has failed.
  [[nodiscard]] bool is_held_up(int member) const {
    using State = RecordedOperation::State;
    const auto& operations = snapshot(member)->recording.operations;
    const auto last = std::ranges::max_element(operations, {}, &RecordedOperation::finished);
    if (last != operations.end() && last->state == State::kFailed) return true;
    return !is_stopped(member) &&
           std::ranges::any_of(operations, [&](const RecordedOperation& operation) {
             const bool of_ours = of_our_group(operation) && operation.place > 0;
             return operation.state == State::kRunning &&
                    (!of_ours || operation.place < wait_.place);
           });
  }

  [[nodiscard]] std::optional<int> if_held_up(int member) const {
    return is_held_up(member) ? std::optional<int>(member) : std::nullopt;
  }

  // In our operation it may wait for another member, which this one does not wait for itself.
  [[nodiscard]] std::optional<int> if_waiting(int member) const {
    const ProcessState state = snapshot(member)->process;
    const bool may_wait = state == ProcessState::kSleeps || state == ProcessState::kRuns;
    return may_wait ? std::optional<int>(member) : std::nullopt;
  }

  [[nodiscard]] Diagnosis in_another_operation(int member) const {
    const RecordedOperation& theirs = *at_our_place(member);
    const std::string name = members_.name(member), ours = "ranks " + list_ranks(waiting());
    const std::string we = waiting().size() == 1 ? "rank " + list_ranks(waiting()) : ours;
    const RecordedOperation* own =
        recorded(members_.index) ? at_our_place(members_.index) : nullptr;
    // What the recorder has cut must be cut on both sides.
    if (name_of(theirs) != (own ? name_of(*own) : name_once_recorded(wait_.name))) {
      return {.message = name + " is in " + name_of(theirs) + " as operation " +
                         std::to_string(wait_.place) + " on axis " + members_.axis + ", where " +
                         we + " entered " + wait_.name,
              .hint = kSameOperations,
              .mutual = true};
    }
    const std::string their_shape = shape(theirs), own_shape = own ? shape(*own) : "another shape";
    if (their_shape == own_shape) {
      return {.message = name + " has entered " + where() +
                         " with another root, reduction or cut than " + we,
              .hint = "all ranks must give the same",
              .mutual = true};
    }
    return {.message = name + " has entered " + where() + " with " + their_shape + ", and " + we +
                       " with " + own_shape,
            .hint = "all ranks must give tensors of the same size and type",
            .mutual = true};
  }

  // All that is known of have entered: then it is one that is stopped, or one that nothing has come
  // from.
  [[nodiscard]] Diagnosis silent(const std::vector<int>& suspects) const {
    const std::optional<int> suspect = main_suspect(suspects);
    if (!suspect) return {where() + " took more than " + limit(), ""};
    if (snapshot(*suspect) == nullptr) return unseen(*suspect);
    if (!recorded(*suspect)) return unrecorded(*suspect);
    const std::string name = members_.name(*suspect), hint = about_process(*suspect);
    if (wait_.place > 0 && !is_ahead(*suspect)) {
      return {name + " has entered " + where() + " and stopped there; " + who_has_waited(*suspect),
              hint, if_waiting(*suspect)};
    }
    return {nothing_from(*suspect) + "; " + describe_last_operation(*snapshot(*suspect)), hint,
            if_held_up(*suspect)};
  }

  // Whom to look at. All members take part in an operation with a place: one that is stopped holds
  // it up even if others are waited for.
  [[nodiscard]] std::optional<int> main_suspect(const std::vector<int>& suspects) const {
    const auto stopped = [&](int member) { return is_stopped(member); };
    auto found = std::ranges::find_if(suspects, stopped);
    if (found != suspects.end()) return *found;
    for (int member = 0; member < members_.size() && wait_.place > 0; ++member) {
      if (member != members_.index && is_stopped(member)) return member;
    }
    found = std::ranges::find_if(suspects, [&](int member) { return !is_ahead(member); });
    if (found != suspects.end()) return *found;
    return suspects.empty() ? std::nullopt : std::optional<int>(suspects.front());
  }

  [[nodiscard]] std::string nothing_from(int member) const {
    return "nothing from " + members_.name(member) + " in " + where() + "; " + who_has_waited();
  }

  // One of whom nobody has said anything.
  [[nodiscard]] Diagnosis unseen(int member) const {
    const std::string what = "what that rank does cannot be seen from here: ";
    if (members_.on_this_host(member)) return {nothing_from(member), what + kToRecord};
    return {nothing_from(member), what +
                                      "`troika inspect` on its host tells, if it keeps a flight "
                                      "recorder (see TROIKA_RECORDERS)"};
  }

  // One of which only the process is known.
  [[nodiscard]] Diagnosis unrecorded(int member) const {
    const std::string hint = about_process(member);
    const std::string message = is_stopped(member)
                                    ? members_.name(member) + " is stopped, in or before " +
                                          where() + "; " + who_has_waited()
                                    : nothing_from(member);
    return {message, hint.empty() ? kToRecord : hint + "; " + kToRecord};
  }

  [[nodiscard]] std::string limit() const { return format_duration(wait_.waited.count()); }

  static std::string shape(const RecordedOperation& operation) {
    return std::to_string(operation.elements) + " x " + operation.dtype;
  }

  [[nodiscard]] std::string about_process(int member) const {
    const RankSnapshot& theirs = *snapshot(member);
    const std::string pid = std::to_string(theirs.recording.process_id);
    switch (theirs.process) {
      case ProcessState::kStopped:
        return "process " + pid +
               " is stopped (SIGSTOP, a debugger, a frozen container): kill -CONT " + pid +
               " lets it go on";
      case ProcessState::kRuns:
        return "process " + pid +
               " is computing: an endless loop, or work that takes longer than " + kTimeout;
      case ProcessState::kSleeps:
        return "process " + pid +
               " sleeps: it waits for something else, such as a file, a lock or another group, "
               "perhaps for longer than " +
               kTimeout;
      case ProcessState::kEnded:
        return "process " + pid + " has ended: its last lines say why";
      case ProcessState::kUnknown:
        break;
    }
    return "";
  }

  const Members& members_;
  const BlockedOperation& wait_;
  std::span<const std::optional<RankSnapshot>> snapshots_;
  std::string axis_;  // as recorders keep it
};

}  // namespace

Diagnosis diagnose(const Members& members, const BlockedOperation& wait,
                   std::span<const std::optional<RankSnapshot>> snapshots,
                   const std::vector<int>& suspects) {
  return DiagnosisBuilder(members, wait, snapshots).build(suspects);
}

}  // namespace troika
