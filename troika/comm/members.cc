#include <troika/comm/members.h>

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

}  // namespace troika
