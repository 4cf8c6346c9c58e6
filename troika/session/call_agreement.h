// Compares the collective calls that the ranks of a user's program make, before any of them
// computes: ranks in different calls would take part in each other's operations, and what one rank
// refuses would leave the others waiting.
#pragma once

#include <troika/base/failure.h>
#include <troika/base/function_ref.h>
#include <troika/session/session.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troika {

// The name of the call that ends a session: a rank that makes it has no more to do.
inline constexpr std::string_view kClosing = "the closing of the session";

inline constexpr auto kNoOptions = [] { return std::string(); };

// A collective call, as one rank makes it.
struct ProgramCall {
  // The name, equal on all ranks that are in this call: "a step of model 2".
  std::string_view name;
  // An addition to the name in errors, which need not be equal: "(rod.toml)". May be empty.
  std::string_view remark = {};
  // The label of the operation while it waits; the name where it is empty.
  std::string_view label = {};
  // A digest of the arguments that must be equal on all ranks, and the function that describes them
  // where they are not: "8 values of type double". A rank with the digest 0 goes with any.
  std::uint64_t options = 0;
  FunctionRef<std::string()> describe_options = kNoOptions;
  // The time to wait for the other ranks, where that is not the session's time-out.
  std::optional<Seconds> timeout = {};
};

// Returns a number for a text, the same on every machine.
[[nodiscard]] std::uint64_t number_of_text(std::string_view text);

// Collective. Returns where all ranks make the same call, with the same options, and none refuses
// it. Otherwise throws the same on every rank: RendezvousError where calls differ, naming each with
// its ranks, those that close the session first; where a rank has a `refusal`, as
// throw_on_all_ranks() does; UsageError where options differ, naming each with its ranks. One
// all-reduce of 40 bytes, and a gathering of texts before it throws. Does nothing but throw the
// refusal where a rank is alone. Throws DeadlineError, PeerError.
void agree_on_call(const Session& session, const ProgramCall& own,
                   const std::optional<Failure>& refusal);

}  // namespace troika
