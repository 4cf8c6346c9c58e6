#include <troika/comm/members.h>

#include <exception>

namespace troika {

std::string Members::name(int member) const {
  const auto i = static_cast<std::size_t>(member);
  std::string text = "rank " + std::to_string(ranks[i]) + " (host " + hosts[i];
  if (i < pids.size()) text += ", pid " + std::to_string(pids[i]);
  return text + ")";
}

bool Members::on_this_host(int member) const {
  const auto i = static_cast<std::size_t>(member), own = static_cast<std::size_t>(index);
  return i < identities.size() && identities[i] == identities[own];
}

void ReasonBoard::post(const Reason& reason) noexcept {
  try {
    store_.set(std::to_string(index_), reason.text());
    // Without a store the peers learn that this member is gone, though not why.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

std::optional<Reason> ReasonBoard::reason_of(int member, Seconds patience) noexcept {
  try {
    const std::string key = std::to_string(member);
    if (!store_.wait({key}, Deadline::in(patience))) return std::nullopt;
    return Reason::from(store_.get_all({key}).front());
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace troika
