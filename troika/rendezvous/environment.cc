#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/endpoint.h>
#include <troika/rendezvous/environment.h>

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <limits>

namespace troika {
namespace {

// MPICH's process manager hands every rank a socket to itself, which survives a wrapping shell.
std::string launcher_id(std::optional<int> socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (socket && getsockopt(*socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0) {
    return std::to_string(peer.pid);
  }
  return std::to_string(getppid());
}

}  // namespace

Environment Environment::of_process() {
  Variables variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(variables),
                     Host{host_name(), host_resolves, is_this_host, launcher_id});
}

Environment::Environment(Variables variables, Host host)
    : variables_(std::move(variables)), host_(std::move(host)) {}

const std::string* Environment::find(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() || found->second.empty() ? nullptr : &found->second;
}

std::optional<std::string> Environment::text(std::string_view name) const {
  const std::string* value = find(name);
  return value ? std::optional(*value) : std::nullopt;
}

std::string Environment::text_or(std::string_view name, std::string_view otherwise) const {
  const std::string* value = find(name);
  return value ? *value : std::string(otherwise);
}

std::optional<int> Environment::number(std::string_view name) const {
  const std::string* value = find(name);
  if (!value) return std::nullopt;
  int number = 0;
  const char* end = value->data() + value->size();
  const auto [rest, error] = std::from_chars(value->data(), end, number);
  if (error != std::errc() || rest != end || number < 0) {
    throw UsageError("environment variable " + std::string(name) + "=" + quote(*value) +
                         " is not a whole number from 0 to " +
                         std::to_string(std::numeric_limits<int>::max()),
                     "unset " + std::string(name) + ", or set it as the launcher would");
  }
  return number;
}

int Environment::needed_number(std::string_view name, std::string_view because) const {
  if (const auto value = number(name)) return *value;
  throw UsageError("environment variable " + std::string(because) + " is set, but " +
                       std::string(name) + " is not",
                   "set both, or unset " + std::string(because) +
                       " to let troika start the ranks of this host itself");
}

}  // namespace troika
