#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/endpoint.h>

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace troika::detail {
namespace {

std::string key_of(const EngineContext& context) {
  std::vector<std::string> ranks;
  for (const int rank : context.ranks) ranks.push_back(std::to_string(rank));
  return "comm/" + std::to_string(context.options.generation) + "/" + context.axis + "/" +
         join(ranks, "-");
}

// A connection of its own, with keys that no other group has: by them the group is known.
Store store_for_group(const EngineContext& context, std::uint32_t& identity) {
  if (context.options.store == nullptr) {
    throw InternalError("internal error: an engine between processes needs a store");
  }
  Store store = context.options.store->clone();
  const std::string key = key_of(context);
  const auto number = store.add(key + "/made/" + std::to_string(context.index), 1);
  const std::string prefix = key + "/" + std::to_string(number);
  identity = static_cast<std::uint32_t>(content_hash(prefix));
  return store.with_prefix(prefix);
}

}  // namespace

GroupRendezvous::GroupRendezvous(const EngineContext& context)
    : context_(context),
      deadline_(Deadline::in(context.options.rendezvous_timeout)),
      store_(store_for_group(context, identity_)) {}

GroupRendezvous::GroupRendezvous(const EngineContext& context, const GroupRendezvous& whole,
                                 std::string_view topic)
    : context_(context),
      deadline_(whole.deadline_),
      identity_(whole.identity_),
      store_(whole.store_.with_prefix(topic)) {}

std::vector<std::string> GroupRendezvous::exchange(std::string_view topic, const std::string& own) {
  const auto key = [&](std::size_t member) {
    return std::string(topic) + "/" + std::to_string(member);
  };
  store_.set(key(static_cast<std::size_t>(context_.index)), own);
  std::vector<std::string> keys;
  for (std::size_t member = 0; member < context_.ranks.size(); ++member)
    keys.push_back(key(member));
  if (store_.wait(keys, deadline_)) return store_.get_all(keys);
  std::vector<int> missing;
  for (std::size_t member = 0; member < keys.size(); ++member) {
    if (!store_.is_set(keys[member])) missing.push_back(context_.ranks[member]);
  }
  if (missing.empty()) return store_.get_all(keys);  // the last has come just now
  const bool one = missing.size() == 1;
  throw RendezvousError(
      (one ? "rank " : "ranks ") + list_ranks(missing) + " did not come to connect axis " +
          context_.axis + " (ranks " + list_ranks(context_.ranks) + ") within " +
          format_fixed(deadline_.timeout().count(), 1) + " s",
      std::string(one ? "is it" : "are they") + " still starting, or did the program end there?");
}

Members GroupRendezvous::members() {
  Members members{.axis = context_.axis,
                  .ranks = context_.ranks,
                  .hosts = {},
                  .index = context_.index,
                  .generation = context_.options.generation,
                  .recorders = context_.options.recorders};
  // A host's name holds no line break, and its identity ends with its name.
  const std::string own = host_name() + "\n" + host_identity() + "\n" + std::to_string(getpid());
  for (const std::string& word : exchange("member", own)) {
    std::istringstream lines(word);
    std::string host, identity, pid;
    std::getline(lines, host);
    std::getline(lines, identity);
    std::getline(lines, pid);
    members.hosts.push_back(host);
    members.identities.push_back(identity);
    members.pids.push_back(static_cast<int>(std::strtol(pid.c_str(), nullptr, 10)));
  }
  return members;
}

}  // namespace troika::detail
