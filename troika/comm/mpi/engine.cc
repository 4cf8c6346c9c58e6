// The engine mpi: collectives.h over MPI's messages. MPI's own collectives are not used: those that
// do not block, which deadlines need, are slower than ours, and they reduce in an order of their
// own.
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/comm/bootstrap/group_rendezvous.h>
#include <troika/comm/kinds.h>
#include <troika/comm/mpi/library.h>
#include <troika/comm/mpi/transport.h>
#include <troika/comm/p2p/point_to_point_engine.h>

#include <algorithm>
#include <span>
#include <sstream>

namespace troika {
namespace {

// What a member tells the others about its MPI.
struct MpiInfo {
  int rank = -1;  // in MPI_COMM_WORLD
  int size = 0;
  std::string text;  // the library, or why not
};

std::string write(const MpiInfo& info) {
  return std::to_string(info.rank) + " " + std::to_string(info.size) + " " + info.text;
}

MpiInfo read(const std::string& answer) {
  MpiInfo info;
  std::istringstream text(answer);
  text >> info.rank >> info.size;
  std::getline(text >> std::ws, info.text);
  return info;
}

MpiInfo start_mpi() {
  mpi::MpiPlugin& plugin = mpi::plugin();
  try {
    plugin.start();
    if (plugin.threads() != mpi::Threads::kAll) {
      throw UsageError(
          "the program has initialised MPI without MPI_THREAD_MULTIPLE, which the "
          "engine mpi needs, as its operations go on beside the program",
          "call MPI_Init_thread with MPI_THREAD_MULTIPLE, or use the engine auto (comm.engine, "
          "SessionOptions::engine)");
    }
    return {plugin.rank(), plugin.size(), plugin.library()};
  } catch (const mpi::MpiError& failure) {
    throw RendezvousError(std::string("MPI does not start: ") + failure.what());
  }
}

// Every member's position in the MPI job, once all agree that it is one job.
std::vector<int> positions(const std::vector<std::string>& answers, const Members& members) {
  const std::string hint =
      "start all ranks with one mpirun, or use the engine gloo (comm.engine, "
      "SessionOptions::engine)";
  std::vector<int> ranks;
  const MpiInfo first = read(answers.front());
  for (int member = 0; member < members.size(); ++member) {
    const MpiInfo info = read(answers[static_cast<std::size_t>(member)]);
    const std::string who = members.name(member);
    if (info.rank < 0) throw UsageError(who + " cannot use MPI: " + info.text, hint);
    if (info.text != first.text) {
      throw UsageError(
          who + " has " + info.text + ", and " + members.name(0) + " has " + first.text,
          "use the same MPI on all hosts");
    }
    const auto taken = std::ranges::find(ranks, info.rank);
    if (info.size != first.size || taken != ranks.end()) {
      const int other = taken == ranks.end() ? 0 : static_cast<int>(taken - ranks.begin());
      throw UsageError(who + " and " + members.name(other) + " are not in the same MPI job: rank " +
                           std::to_string(info.rank) + " of " + std::to_string(info.size) +
                           ", and rank " + std::to_string(ranks[static_cast<std::size_t>(other)]) +
                           " of " + std::to_string(first.size),
                       hint);
    }
    ranks.push_back(info.rank);
  }
  return ranks;
}

std::uint64_t trace_of(const EngineContext& context, const std::vector<int>& ranks) {
  ContentHash hash(context.options.generation);
  return hash.update(context.axis).update(std::as_bytes(std::span(ranks))).digest();
}

EngineAvailability mpi_availability() {
  const auto obstacle = mpi::obstacle();
  EngineAvailability available{.built = !mpi::available_plugins().empty(),
                               .usable = !obstacle,
                               .reason = "the system's MPI, for clusters and InfiniBand"};
  if (obstacle) available.reason += ": " + obstacle->message + "; " + obstacle->hint;
  return available;
}

// Starts MPI.
bool mpi_works_on_all(detail::GroupRendezvous& rendezvous) {
  bool works = mpi_availability().usable;
  try {
    if (works) (void)start_mpi();
  } catch (const Error&) {
    works = false;
  }
  const auto answers = rendezvous.exchange("mpi works", works ? "yes" : "no");
  return std::ranges::all_of(answers, [](const std::string& answer) { return answer == "yes"; });
}

std::shared_ptr<GroupEngine> make_mpi_engine(const EngineContext& context,
                                             detail::GroupRendezvous* at) {
  detail::GroupRendezvous& rendezvous = *at;
  Members members = rendezvous.members();
  MpiInfo own;
  std::exception_ptr error;
  try {
    own = start_mpi();
  } catch (const Error& failure) {
    error = std::current_exception();
    own.text = failure.what();
  }
  const auto answers =
      rendezvous.exchange("mpi", write(own));  // the others shall not wait for nothing
  const auto cannot = [](const std::string& answer) { return read(answer).rank < 0; };
  if (std::ranges::any_of(answers, cannot)) {
    // Each member is to read why before the store goes with the first that leaves.
    try {
      (void)rendezvous.exchange("mpi read", "");
      // NOLINTNEXTLINE(bugprone-empty-catch): the reason is there already
    } catch (const Error&) {
    }
  }
  if (error) std::rethrow_exception(error);
  const std::vector<int> ranks = positions(answers, members);
  try {
    auto transport = std::make_unique<mpi::MpiTransport>(mpi::plugin().communicator_of(ranks),
                                                         trace_of(context, ranks));
    return std::make_shared<PointToPointEngine>(
        "mpi", std::move(members), std::move(transport),
        AbortStore(rendezvous.store().with_prefix("reason"), context.index),
        SnapshotCollector(context.options.store->share()));
  } catch (const mpi::MpiError& failure) {
    throw RendezvousError("MPI cannot connect axis " + context.axis + ": " + failure.what());
  }
}

}  // namespace

const EngineKind& mpi_kind() {
  static constexpr EngineKind kKind{.name = "mpi",
                                    .traits = {.preference = 1},
                                    .availability = mpi_availability,
                                    .works_on_all = mpi_works_on_all,
                                    .make = make_mpi_engine};
  return kKind;
}

}  // namespace troika
