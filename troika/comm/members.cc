#include <troika/comm/members.h>

#include <charconv>
#include <exception>

namespace troika {
namespace {

// Keys of the board, beside the members' own ones.
constexpr const char* kCount = "count";
constexpr const char* kFirst = "first";

}  // namespace

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
    const std::string key = std::to_string(index_);
    store_.set(key, reason.text());
    if (store_.add(kCount, 1) == 1) store_.set(kFirst, key);
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

std::optional<ReasonBoard::Posted> ReasonBoard::first() noexcept {
  try {
    if (!store_.is_set(kFirst)) return std::nullopt;
    const std::string key = store_.get_all({kFirst}).front();
    int member = -1;
    std::from_chars(key.data(), key.data() + key.size(), member);
    return Posted{member, Reason::from(store_.get_all({key}).front())};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace troika
