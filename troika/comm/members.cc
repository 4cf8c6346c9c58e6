#include <troika/comm/members.h>
#include <troika/observe/recorder.h>
#include <troika/rendezvous/agreement.h>

#include <chrono>
#include <exception>

namespace troika {

std::string Members::name(int member) const {
  const auto i = static_cast<std::size_t>(member);
  return "rank " + std::to_string(ranks[i]) + " on host " + hosts[i];
}

std::string Members::group_name() const {
  return "axis " + axis + " (ranks " + list_ranks(ranks) + ")";
}

std::optional<std::string> Members::last_act(int member) const {
  const auto i = static_cast<std::size_t>(member);
  if (recorders.empty() || hosts[i] != hosts[static_cast<std::size_t>(index)]) return std::nullopt;
  try {
    const Recording recording = read_recorder(recorder_path(recorders, ranks[i]));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::string last =
        describe_last(recording, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    return name(member) + (last.starts_with("in ") ? " is " : " ") + last;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void ReasonBoard::post(const std::string& reason) noexcept {
  try {
    store_.set(std::to_string(index_), reason);
    // Without a store the peers learn that this member is gone, though not why.
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

std::optional<std::string> ReasonBoard::reason_of(int member, Seconds patience) noexcept {
  try {
    const std::string key = std::to_string(member);
    if (!store_.wait({key}, Deadline::in(patience))) return std::nullopt;
    return store_.get_all({key}).front();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace troika
