#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/session/call_agreement.h>
#include <troika/session/consensus.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace troika {
namespace {

// A number that all ranks should give alike, within a maximum over all ranks: they do where the
// greatest is the least, which is the complement of the greatest complement.
struct Agreed {
  std::int64_t greatest, greatest_complement;

  static Agreed on(std::uint64_t number) {
    const auto value = static_cast<std::int64_t>(number);
    return {value, ~value};
  }
  // A rank that has no say.
  static Agreed nothing() {
    return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::min()};
  }
  [[nodiscard]] bool differs() const {
    return greatest != nothing().greatest && greatest != ~greatest_complement;
  }
};

// What one all-reduce tells of all ranks.
struct Exchange {
  Agreed call;
  Agreed options;
  std::int64_t refused;
};
static_assert(sizeof(Exchange) == 5 * sizeof(std::int64_t));

// Each text with the ranks that have it: "a step of model 1 on rank 0, a barrier on ranks 1 and 2".
std::string by_ranks(const std::vector<Statement>& statements) {
  std::vector<std::string> parts;
  for (const Statement& each : statements) {
    parts.push_back(each.text + " on " + ranks_in_words(each.ranks));
  }
  return join(parts, ", ");
}

[[noreturn]] void throw_different(std::vector<Statement> calls) {
  const std::string hint =
      "all ranks make the collective calls of a session in the same order; this session can only "
      "be closed";
  const auto closing = std::ranges::find(calls, kClosing, &Statement::text);
  if (closing == calls.end()) {
    throw RendezvousError("the ranks have made different calls: " + by_ranks(calls), hint);
  }
  const std::vector<int> gone = closing->ranks;
  calls.erase(closing);
  throw RendezvousError(ranks_in_words(gone) + (gone.size() == 1 ? " has" : " have") +
                            " closed the session before " + by_ranks(calls),
                        hint);
}

}  // namespace

std::uint64_t number_of_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void agree_on_call(const Session& session, const ProgramCall& own,
                   const std::optional<Failure>& refusal) {
  if (session.size() == 1) {
    if (refusal) throw_failure(*refusal);
    return;
  }
  // What a rank refuses may be the very thing that its options would tell.
  Exchange all = {Agreed::on(number_of_text(own.name)),
                  refusal || own.options == 0 ? Agreed::nothing() : Agreed::on(own.options),
                  refusal ? 1 : 0};
  const at::Tensor numbers = at::from_blob(&all, {5}, at::kLong);
  const Deadline deadline = Deadline::in(own.timeout.value_or(session.timeout()));
  const std::string_view label = own.label.empty() ? own.name : own.label;
  session.world().all_reduce(numbers, ReduceOp::kMax, {label, deadline}).wait();
  if (all.call.differs()) {
    std::string words(own.name);
    if (!own.remark.empty()) words += " " + std::string(own.remark);
    throw_different(statements_of(session.gather(words, "calls that differ")));
  }
  if (all.refused != 0) throw_on_all_ranks(session, refusal, own.name, NameRanks::kUnlessAll);
  if (all.options.differs()) {
    const auto options = statements_of(session.gather(own.describe_options(), "options of a call"));
    throw UsageError(std::string(own.name) + ": " + by_ranks(options),
                     "all ranks have to give the same");
  }
}

}  // namespace troika
