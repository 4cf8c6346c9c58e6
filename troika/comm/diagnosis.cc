#include <troika/base/units.h>
#include <troika/comm/diagnosis.h>
#include <troika/rendezvous/agreement.h>

#include <algorithm>

namespace troika {
namespace {

constexpr const char* kSameOrder = "all ranks must call the same operations, in the same order";

class Case {
 public:
  Case(const Members& members, const Wait& wait,
       std::span<const std::optional<RankSnapshot>> snapshots)
      : members_(members), wait_(wait), snapshots_(snapshots) {}

  Diagnosis judge(const std::vector<int>& suspects) const {
    std::vector<int> absent, elsewhere;
    for (int member = 0; member < members_.size() && wait_.place > 0; ++member) {
      if (member == members_.index || !snapshot(member)) continue;
      const RecordedOperation* theirs = at_our_place(member);
      if (theirs == nullptr) {
        absent.push_back(member);
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

  // What a member has entered as the group's operation of the same number.
  [[nodiscard]] const RecordedOperation* at_our_place(int member) const {
    const auto& operations = snapshot(member)->recording.operations;
    const auto found = std::ranges::find_if(operations, [&](const RecordedOperation& operation) {
      return operation.place == wait_.place && operation.axis == members_.axis &&
             operation.generation == members_.generation;
    });
    return found == operations.end() ? nullptr : &*found;
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
    const int first = absent.front();
    std::string who = members_.name(first);
    if (absent.size() > 1) {
      who += " and " + std::to_string(absent.size() - 1) +
             (absent.size() == 2 ? " other rank" : " other ranks");
    }
    return {who + (absent.size() == 1 ? " has" : " have") + " not entered " + where() + "; " +
                who_has_waited() + "; " + last_deed(*snapshot(first)),
            about_process(first)};
  }

  [[nodiscard]] Diagnosis in_another_operation(int member) const {
    const RecordedOperation& theirs = *at_our_place(member);
    const std::string name = members_.name(member), ours = "ranks " + list_ranks(waiting());
    const std::string we = waiting().size() == 1 ? "rank " + list_ranks(waiting()) : ours;
    if (name_of(theirs) != wait_.name) {
      return {name + " is in " + name_of(theirs) + " as operation " + std::to_string(wait_.place) +
                  " on axis " + members_.axis + ", where " + we + " entered " + wait_.name,
              kSameOrder};
    }
    const RecordedOperation* own =
        snapshot(members_.index) ? at_our_place(members_.index) : nullptr;
    const std::string their_shape = shape(theirs), own_shape = own ? shape(*own) : "another shape";
    if (their_shape == own_shape) {
      return {name + " has entered " + where() + " with another root, reduction or cut than " + we,
              "all ranks must give the same"};
    }
    return {name + " has entered " + where() + " with " + their_shape + ", and " + we + " with " +
                own_shape,
            "all ranks must give tensors of the same size and type"};
  }

  // All that is known of have entered: then it is those that nothing has come from.
  [[nodiscard]] Diagnosis silent(const std::vector<int>& suspects) const {
    if (suspects.empty()) return {where() + " took more than " + limit(), ""};
    const int first = suspects.front();
    const RankSnapshot* theirs = snapshot(first);
    if (theirs == nullptr) {
      return {"nothing from " + members_.name(first) + " in " + where() + "; " + who_has_waited(),
              "what that rank does cannot be seen from here: `troika inspect` on its host tells"};
    }
    if (wait_.place > 0) {
      return {members_.name(first) + " has entered " + where() + " and stopped there; " +
                  who_has_waited(first),
              about_process(first)};
    }
    return {"nothing from " + members_.name(first) + " in " + where() + "; " + who_has_waited() +
                "; " + last_deed(*theirs),
            about_process(first)};
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
               " is computing: an endless loop, or work that takes longer than the deadline "
               "(comm.timeout_seconds)";
      case ProcessState::kSleeps:
        return "process " + pid +
               " sleeps: it waits for something else, such as a file, a lock or "
               "another group";
      case ProcessState::kEnded:
        return "process " + pid + " has ended: its last lines say why";
      case ProcessState::kUnknown:
        break;
    }
    return "";
  }

  const Members& members_;
  const Wait& wait_;
  std::span<const std::optional<RankSnapshot>> snapshots_;
};

}  // namespace

Diagnosis diagnose(const Members& members, const Wait& wait,
                   std::span<const std::optional<RankSnapshot>> snapshots,
                   const std::vector<int>& suspects) {
  return Case(members, wait, snapshots).judge(suspects);
}

}  // namespace troika
