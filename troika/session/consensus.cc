#include <troika/rendezvous/agreement.h>
#include <troika/session/consensus.h>

#include <algorithm>

namespace troika {

std::string ranks_in_words(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

std::string ranks_in_words(const std::vector<int>& ranks, std::span<const Member> members) {
  std::string text = ranks_in_words(ranks);
  const auto is_elsewhere = [&](const Member& each) { return each.host != members[0].host; };
  if (std::ranges::none_of(members, is_elsewhere)) return text;
  std::vector<std::string> hosts;
  for (const int rank : ranks) {
    const std::string& host = members[static_cast<std::size_t>(rank)].host;
    if (std::ranges::count(hosts, host) == 0) hosts.push_back(host);
  }
  text += hosts.size() == 1 ? " on host " : " on hosts ";
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (i > 0) text += i + 1 == hosts.size() ? " and " : ", ";
    text += hosts[i];
  }
  return text;
}

std::vector<Statement> statements_of(const std::vector<std::string>& by_rank) {
  std::vector<Statement> statements;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    auto same = std::ranges::find(statements, by_rank[rank], &Statement::text);
    if (same == statements.end()) same = statements.insert(same, {by_rank[rank], {}});
    same->ranks.push_back(static_cast<int>(rank));
  }
  return statements;
}

void throw_on_all_ranks(const Session& session, const std::optional<Failure>& own,
                        std::string_view label, NameRanks name_ranks) {
  const std::vector<std::string> all = session.gather(own ? encode(*own) : "", label);
  std::optional<Failure> joint;
  for (const Statement& each : statements_of(all)) {
    Failure failure = decode_failure(each.text);
    if (name_ranks == NameRanks::kAlways || each.ranks.size() < all.size()) {
      failure.message += ", on " + ranks_in_words(each.ranks, session.members());
    }
    if (joint) {
      joint->message += "; " + failure.message;
    } else {
      joint = std::move(failure);
    }
  }
  if (joint) throw_failure(*joint);
}

std::optional<Failure> failure_in(FunctionRef<void()> action) {
  try {
    action();
    return std::nullopt;
  } catch (const std::exception& error) {
    return failure_of(error);
  }
}

void run_on_all_ranks(const Session& session, FunctionRef<void()> action, std::string_view label,
                      NameRanks name_ranks) {
  throw_on_all_ranks(session, failure_in(action), label, name_ranks);
}

std::optional<Difference> find_difference(const Session& session, std::string_view own,
                                          std::string_view label) {
  const std::vector<std::string> all = session.gather(own, label);
  const auto other = std::ranges::find_if(all, [&](const auto& each) { return each != all[0]; });
  if (other == all.end()) return std::nullopt;
  Difference difference{all[0], {*other, {}}};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == *other) difference.theirs.ranks.push_back(static_cast<int>(rank));
  }
  return difference;
}

void agree_on_kind(const Session& session, at::Device device) {
  const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  const std::vector<std::string> all = session.gather(kind, "kinds of devices");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UsageError(
        "rank 0 computes on " + all[0] + ", and rank " + std::to_string(rank) + " on " + all[rank],
        "start as many ranks a host as it has GPUs, or set train.device = \"cpu\"");
  }
}

}  // namespace troika
