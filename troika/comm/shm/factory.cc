// Makes the engine shm: its members find each other's sockets through the store.
#include <troika/base/error.h>
#include <troika/comm/factory.h>
#include <troika/comm/meeting.h>
#include <troika/comm/shm/engine.h>
#include <troika/comm/shm/patience.h>
#include <troika/observe/machine.h>

#include <algorithm>

namespace troika::detail {

EngineFacts shm_facts() {
  EngineFacts facts{.kind = EngineKind::kShm,
                    .name = "shm",
                    .built = true,
                    .usable = true,
                    .reason = "shared memory, between the ranks of one host"};
  try {
    (void)shm::MemoryFile::create(1);
  } catch (const Error& error) {
    facts.usable = false;
    facts.reason = error.what();
  }
  return facts;
}

std::shared_ptr<GroupEngine> make_shm_engine(const EngineContext& context, Meeting& meeting) {
  Members members = meeting.members();
  const shm::Door door;
  const auto doors = meeting.exchange("door", door.name());
  shm::Shape shape;
  shape.members = members.size();
  // A channel to each peer: less for each where there are many.
  while (shape.members * shape.channel_bytes > (std::size_t{4} << 20) &&
         shape.channel_bytes > (std::size_t{16} << 10)) {
    shape.channel_bytes /= 2;
  }
  try {
    shm::Attached attached = attach(door, doors, context.index, shape, meeting.deadline());
    const int ranks = std::max(members.size(), context.options.ranks_on_host);
    return std::make_shared<shm::Engine>(std::move(members), std::move(attached), shape,
                                         shm::patience_of(ranks, usable_cores()));
  } catch (const shm::Late& late) {
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

}  // namespace troika::detail
