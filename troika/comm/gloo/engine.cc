// The engine gloo: collectives.h over Gloo's connections. Its members find each other through the
// store, under keys that name axis, members, generation and how many such groups there were.
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/comm/factory.h>
#include <troika/comm/gloo/link.h>
#include <troika/comm/message_engine.h>
#include <troika/comm/network.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/agreement.h>
#include <troika/rendezvous/endpoint.h>

namespace troika::detail {
namespace {

std::string key_of(const EngineContext& context) {
  std::vector<std::string> ranks;
  for (const int rank : context.ranks) ranks.push_back(std::to_string(rank));
  return "comm/" + std::to_string(context.options.generation) + "/" + context.axis + "/" +
         join(ranks, "-");
}

// A connection of its own, with keys that no other group has.
Store store_for_group(const EngineContext& context) {
  if (context.options.store == nullptr) {
    throw InternalError("internal error: engine gloo needs a store");
  }
  Store store = context.options.store->clone();
  const std::string key = key_of(context);
  const auto number = store.add(key + "/made/" + std::to_string(context.index), 1);
  return store.with_prefix(key + "/" + std::to_string(number));
}

void throw_if_missing(Store& store, const Members& members, const Deadline& deadline) {
  std::vector<int> missing;
  for (int member = 0; member < members.size(); ++member) {
    if (!store.is_set("host/" + std::to_string(member))) {
      missing.push_back(members.ranks[static_cast<std::size_t>(member)]);
    }
  }
  if (missing.empty()) return;  // the last has come just now
  const bool one = missing.size() == 1;
  throw RendezvousError(
      (one ? "rank " : "ranks ") + list_ranks(missing) + " did not come to connect " +
          members.group_name() + " within " + format_fixed(deadline.timeout().count(), 1) + " s",
      std::string(one ? "is it" : "are they") + " still starting, or did the program end there?");
}

// Waits for all members, and learns their hosts.
Members meet(Store& store, const EngineContext& context, const Deadline& deadline) {
  Members members{.axis = context.axis,
                  .ranks = context.ranks,
                  .hosts = {},
                  .index = context.index,
                  .recorders = context.options.recorders};
  store.set("host/" + std::to_string(context.index), host_name());
  std::vector<std::string> keys;
  for (int member = 0; member < members.size(); ++member) {
    keys.push_back("host/" + std::to_string(member));
  }
  if (!store.wait(keys, deadline)) throw_if_missing(store, members, deadline);
  members.hosts = store.get_all(keys);
  return members;
}

GlooDevice choose_device(const EngineContext& context) {
  if (const auto interface = requested_interface()) {
    return {GlooDevice::By::kInterface, *interface};
  }
  if (!context.options.address.empty()) return {GlooDevice::By::kAddress, context.options.address};
  return {GlooDevice::By::kAddress, local_address_towards(context.options.store->endpoint())};
}

}  // namespace

EngineFacts gloo_facts() {
  return {.kind = EngineKind::kGloo,
          .name = "gloo",
          .built = true,
          .usable = true,
          .reason = "TCP, within a host and between hosts"};
}

std::shared_ptr<GroupEngine> make_gloo_engine(const EngineContext& context) {
  const Deadline deadline = Deadline::in(context.options.rendezvous_timeout);
  const GlooDevice device = choose_device(context);
  Store store = store_for_group(context);
  Members members = meet(store, context, deadline);
  // Gloo's waits must not hold the connection that is used to tell why things went wrong.
  std::unique_ptr<Link> link = connect_gloo(store.clone().with_prefix("gloo"), device,
                                            context.index, members.size(), deadline);
  return std::make_shared<MessageEngine>("gloo", std::move(members), std::move(link),
                                         ReasonBoard(store.with_prefix("reason"), context.index));
}

}  // namespace troika::detail
