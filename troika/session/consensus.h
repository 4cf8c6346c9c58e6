// Throws the same error on every rank. A rank that throws alone leaves the others in their next
// operation until its deadline passes. Here all ranks exchange what they have found, and all throw
// the same words.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/function_ref.h>
#include <troika/session/session.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Returns "rank 1", "ranks 1, 3 and 4".
[[nodiscard]] std::string ranks_in_words(const std::vector<int>& ranks);
// Returns the same with the hosts, where the members of all ranks are on several: "rank 1 on host
// b", "ranks 1, 3 and 4 on hosts b and c".
[[nodiscard]] std::string ranks_in_words(const std::vector<int>& ranks,
                                         std::span<const Member> members);

// A text, and the ranks that say it.
struct Statement {
  std::string text;
  std::vector<int> ranks;  // ascending
};

// Groups equal texts, given by rank, in the order of the first rank that has each. An empty text
// says nothing.
[[nodiscard]] std::vector<Statement> statements_of(const std::vector<std::string>& by_rank);

// The cases in which an error names the ranks that have it.
enum class NameRanks { kAlways, kUnlessAll };

// Collective. Throws on every rank if any of them has a failure: each message with the ranks that
// have it ("no file 'a', on rank 1; no file 'b', on ranks 2 and 3"), and the code and the hint of
// the first. `label` names the operations. Throws DeadlineError or PeerError where ranks do not
// come.
void throw_on_all_ranks(const Session& session, const std::optional<Failure>& own,
                        std::string_view label, NameRanks name_ranks = NameRanks::kAlways);

// Runs `action`. Returns the failure of what it throws; nothing if it throws nothing. Not
// collective.
[[nodiscard]] std::optional<Failure> failure_in(FunctionRef<void()> action);

// Collective. Runs `action`, which is not collective itself. If it throws on any rank, every rank
// throws as in throw_on_all_ranks().
void run_on_all_ranks(const Session& session, FunctionRef<void()> action, std::string_view label,
                      NameRanks name_ranks = NameRanks::kAlways);

// The text of rank 0, and that of the first rank that differs from it, with all ranks that have the
// latter.
struct Difference {
  std::string of_rank_zero;
  Statement theirs;
};

// Collective. Returns the first difference between the ranks' texts, the same on every rank.
// Returns nothing where all are equal.
[[nodiscard]] std::optional<Difference> find_difference(const Session& session,
                                                        std::string_view own,
                                                        std::string_view label);

// Throws UsageError on every rank where the ranks' devices are of two kinds. They send each other
// tensors, all of one kind of memory. Collective.
void agree_on_kind(const Session& session, at::Device device);

}  // namespace troika
