// The engine gloo: collectives.h over Gloo's connections.
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/bootstrap/network.h>
#include <troika/comm/gloo/transport.h>
#include <troika/comm/kinds.h>
#include <troika/comm/p2p/point_to_point_engine.h>
#include <troika/rendezvous/endpoint.h>

namespace troika {
namespace {

GlooDevice choose_device(const EngineContext& context) {
  if (const auto interface = requested_interface()) {
    return {GlooDevice::By::kInterface, *interface};
  }
  if (!context.options.address.empty()) return {GlooDevice::By::kAddress, context.options.address};
  return {GlooDevice::By::kAddress, local_address_towards(context.options.store->endpoint())};
}

EngineAvailability gloo_availability() {
  return {.built = true, .usable = true, .reason = "TCP, within a host and between hosts"};
}

std::shared_ptr<GroupEngine> make_gloo_engine(const EngineContext& context,
                                              detail::GroupRendezvous* at) {
  detail::GroupRendezvous& rendezvous = *at;
  const GlooDevice device = choose_device(context);
  Members members = rendezvous.members();
  // Gloo's waits must not hold the connection that is used to tell why things went wrong.
  std::unique_ptr<Transport> transport =
      connect_gloo(rendezvous.store().clone().with_prefix("gloo"), device, context.index,
                   members.size(), rendezvous.deadline());
  // A member that fails at once must not close connections that others are still making: they would
  // take it for a network that does not work.
  (void)rendezvous.exchange("connected", "");
  return std::make_shared<PointToPointEngine>(
      "gloo", std::move(members), std::move(transport),
      AbortStore(rendezvous.store().with_prefix("reason"), context.index),
      SnapshotCollector(context.options.store->share()));
}

}  // namespace

const EngineKind& gloo_kind() {
  static constexpr EngineKind kKind{
      .name = "gloo", .traits = {}, .availability = gloo_availability, .make = make_gloo_engine};
  return kKind;
}

}  // namespace troika
