// The engine mpi: collectives.h over MPI's messages. MPI's own collectives are not used: those that
// do not block, which deadlines need, are slower than ours, and they fold in an order of their own.
#include <troika/base/error.h>
#include <troika/base/hash.h>
#include <troika/comm/factory.h>
#include <troika/comm/meeting.h>
#include <troika/comm/message_engine.h>
#include <troika/comm/mpi/library.h>
#include <troika/comm/mpi/link.h>

#include <algorithm>
#include <span>
#include <sstream>

namespace troika::detail {
namespace {

// What a member tells the others about its MPI.
struct Standing {
  int rank = -1;  // in MPI_COMM_WORLD
  int size = 0;
  std::string text;  // the library, or why not
};

std::string write(const Standing& standing) {
  return std::to_string(standing.rank) + " " + std::to_string(standing.size) + " " + standing.text;
}

Standing read(const std::string& word) {
  Standing standing;
  std::istringstream text(word);
  text >> standing.rank >> standing.size;
  std::getline(text >> std::ws, standing.text);
  return standing;
}

Standing start_mpi() {
  mpi::Plugin& plugin = mpi::plugin();
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
  } catch (const mpi::Failure& failure) {
    throw RendezvousError(std::string("MPI does not start: ") + failure.what());
  }
}

// Every member's position in the MPI job, once all agree that it is one job.
std::vector<int> positions(const std::vector<std::string>& words, const Members& members) {
  const std::string hint =
      "start all ranks with one mpirun, or use the engine gloo (comm.engine, "
      "SessionOptions::engine)";
  std::vector<int> ranks;
  const Standing first = read(words.front());
  for (int member = 0; member < members.size(); ++member) {
    const Standing standing = read(words[static_cast<std::size_t>(member)]);
    const std::string who = members.name(member);
    if (standing.rank < 0) throw UsageError(who + " cannot use MPI: " + standing.text, hint);
    if (standing.text != first.text) {
      throw UsageError(
          who + " has " + standing.text + ", and " + members.name(0) + " has " + first.text,
          "use the same MPI on all hosts");
    }
    const auto taken = std::ranges::find(ranks, standing.rank);
    if (standing.size != first.size || taken != ranks.end()) {
      const int other = taken == ranks.end() ? 0 : static_cast<int>(taken - ranks.begin());
      throw UsageError(who + " and " + members.name(other) + " are not in the same MPI job: rank " +
                           std::to_string(standing.rank) + " of " + std::to_string(standing.size) +
                           ", and rank " + std::to_string(ranks[static_cast<std::size_t>(other)]) +
                           " of " + std::to_string(first.size),
                       hint);
    }
    ranks.push_back(standing.rank);
  }
  return ranks;
}

std::uint64_t trace_of(const EngineContext& context, const std::vector<int>& ranks) {
  ContentHash hash(context.options.generation);
  return hash.update(context.axis).update(std::as_bytes(std::span(ranks))).digest();
}

}  // namespace

EngineFacts mpi_facts() {
  const auto obstacle = mpi::obstacle();
  EngineFacts facts{.kind = EngineKind::kMpi,
                    .name = "mpi",
                    .built = !mpi::available_plugins().empty(),
                    .usable = !obstacle,
                    .reason = "the system's MPI, for clusters and InfiniBand"};
  if (obstacle) facts.reason += ": " + obstacle->message + "; " + obstacle->hint;
  return facts;
}

bool can_use_mpi(Meeting& meeting) {
  bool works = mpi_facts().usable;
  try {
    if (works) (void)start_mpi();
  } catch (const Error&) {
    works = false;
  }
  const auto words = meeting.exchange("mpi works", works ? "yes" : "no");
  return std::ranges::all_of(words, [](const std::string& word) { return word == "yes"; });
}

std::shared_ptr<GroupEngine> make_mpi_engine(const EngineContext& context, Meeting& meeting) {
  Members members = meeting.members();
  Standing own;
  std::exception_ptr error;
  try {
    own = start_mpi();
  } catch (const Error& failure) {
    error = std::current_exception();
    own.text = failure.what();
  }
  const auto words = meeting.exchange("mpi", write(own));  // the others shall not wait for nothing
  if (error) std::rethrow_exception(error);
  const std::vector<int> ranks = positions(words, members);
  try {
    auto link = std::make_unique<mpi::MpiLink>(mpi::plugin().communicator_of(ranks),
                                               trace_of(context, ranks));
    return std::make_shared<MessageEngine>(
        "mpi", std::move(members), std::move(link),
        ReasonBoard(meeting.store().with_prefix("reason"), context.index),
        Witness(context.options.store->share()));
  } catch (const mpi::Failure& failure) {
    throw RendezvousError("MPI cannot connect axis " + context.axis + ": " + failure.what());
  }
}

}  // namespace troika::detail
