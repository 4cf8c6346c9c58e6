// Makes the engine shm: its members find each other's sockets through the store.
#include <troika/base/error.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/kinds.h>
#include <troika/comm/shm/backoff.h>
#include <troika/comm/shm/engine.h>
#include <troika/observe/machine.h>

#include <algorithm>

namespace troika {
namespace {

EngineAvailability shm_availability() {
  EngineAvailability available{
      .built = true, .usable = true, .reason = "shared memory, between the ranks of one host"};
  try {
    (void)shm::MemoryFile::create(1);
  } catch (const Error& error) {
    available.usable = false;
    available.reason = error.what();
  }
  return available;
}

std::shared_ptr<GroupEngine> make_shm_engine(const EngineContext& context,
                                             detail::GroupRendezvous* at) {
  detail::GroupRendezvous& rendezvous = *at;
  Members members = rendezvous.members();
  const shm::Listener listener;
  const auto names = rendezvous.exchange("door", listener.name());
  shm::Shape shape;
  shape.members = members.size();
  // A channel to each peer: less for each where there are many.
  while (shape.members * shape.channel_bytes > (std::size_t{4} << 20) &&
         shape.channel_bytes > (std::size_t{16} << 10)) {
    shape.channel_bytes /= 2;
  }
  try {
    shm::Attached attached = attach(listener, names, context.index, shape, rendezvous.deadline());
    const int ranks = std::max(members.size(), context.options.ranks_on_host);
    return std::make_shared<shm::Engine>(std::move(members), std::move(attached), shape,
                                         shm::backoff_for(ranks, usable_cores()));
  } catch (const shm::TimedOut& late) {
    const int member = late.missing().empty() ? 0 : late.missing().front();
    throw RendezvousError(
        members.name(member) + " cannot be reached in shared memory from " +
            members.name(members.index) + " on axis " + members.axis,
        "is it on another host, or in another container? Then use the engine auto or gloo "
        "(comm.engine, SessionOptions::engine)");
  } catch (const shm::Broken&) {
    throw RendezvousError("a peer went away while axis " + members.axis + " was being connected");
  }
}

}  // namespace

const EngineKind& shm_kind() {
  static constexpr EngineKind kKind{.name = "shm",
                                    .traits = {.reach = EngineTraits::Reach::kOneHost},
                                    .availability = shm_availability,
                                    .make = make_shm_engine};
  return kKind;
}

}  // namespace troika
