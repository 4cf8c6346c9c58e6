// The functions of troika/troika.h on sessions. Nothing here decides anything: arguments are
// checked, arrays become tensors that view them, and exceptions become codes.
#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/base/version.h>
#include <troika/capi/c_calls.h>
#include <troika/comm/engines.h>
#include <troika/comm/mpi/bootstrap.h>
#include <troika/observe/machine.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troika {
namespace {

std::string_view label_or(const char* label, std::string_view otherwise) {
  return label != nullptr ? std::string_view(label) : otherwise;
}

ReduceOp reduction_of(int reduction) {
  constexpr ReduceOp kAll[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};
  if (reduction < 0 || reduction >= static_cast<int>(std::size(kAll))) {
    throw UsageError("reduction " + std::to_string(reduction) +
                     " is none of TROIKA_SUM, TROIKA_AVERAGE, TROIKA_MAX, TROIKA_MIN");
  }
  return kAll[reduction];
}

// Those that exchange values in host memory.
std::string engine_called(std::string_view name) {
  std::vector<std::string_view> offered;
  std::string refusal;
  for (const std::string_view each : engine_names()) {
    const EngineTraits traits = traits_of_engine(each);
    const bool offers = traits.exchanges() && traits.carries_host_memory();
    if (offers) offered.push_back(each);
    if (each != name) continue;
    if (offers) return std::string(each);
    refusal = traits.exchanges() ? " takes no arrays in host memory" : " exchanges nothing";
  }
  const std::string others = "engines: " + join(offered, ", ");
  if (!refusal.empty()) throw UsageError("engine " + quote(name) + refusal, others);
  throw UsageError("no engine is called " + quote(name), others);
}

SessionOptions session_options(const troika_options* given) {
  SessionOptions options;
  options.name = "c";
  if (given == nullptr) return options;
  if (given->engine != nullptr) options.engine = engine_called(given->engine);
  if (!(given->timeout_seconds >= 0) || !(given->rendezvous_timeout_seconds >= 0)) {
    throw UsageError("a time-out is negative, or no number");
  }
  if (given->timeout_seconds > 0) options.timeout = Seconds(given->timeout_seconds);
  if (given->rendezvous_timeout_seconds > 0) {
    options.rendezvous_timeout = Seconds(given->rendezvous_timeout_seconds);
  }
  if (given->recorders != nullptr) options.recorders = given->recorders;
  return options;
}

// Ranks that share a host share its cores, unless somebody has said otherwise.
void share_cores(const Session& session) {
  if (session.size() == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const auto& members = session.members();
  const std::string& here = members[static_cast<std::size_t>(session.rank())].host_identity;
  const auto neighbours = std::ranges::count_if(
      members, [&](const Member& member) { return member.host_identity == here; });
  at::set_num_threads(threads_of_rank(usable_cores(), static_cast<int>(neighbours)));
}

void open_as(troika_session** result, const std::function<Session()>& open) {
  troika_session*& place = need(result, "session");
  Session session = open();
  share_cores(session);
  place = new troika_session{std::move(session)};
}

}  // namespace
}  // namespace troika

using namespace troika;  // NOLINT(google-build-using-namespace): what follows are C functions

const char* troika_version(void) {
  return kVersion.data();
}

const char* troika_last_error(void) {
  return last_failure().message.c_str();
}

const char* troika_last_hint(void) {
  return last_failure().hint.c_str();
}

int troika_open(const troika_options* options, troika_session** session) {
  return guarded([&] {
    open_as(session, [&] { return Session::from_environment(session_options(options)); });
  });
}

int troika_open_mpi(int communicator, const troika_options* options, troika_session** session) {
  return guarded([&] {
    open_as(session, [&] {
      const SessionOptions given = session_options(options);
      const Deadline deadline = Deadline::in(given.rendezvous_timeout);
      return Session::join(world_of_communicator(communicator, deadline), given);
    });
  });
}

int troika_open_alone(const troika_options* options, troika_session** session) {
  return guarded([&] {
    open_as(session, [&] {
      return Session::join(single_process_world(Environment::of_process()),
                           session_options(options));
    });
  });
}

int troika_close(troika_session* session) {
  return guarded([&] {
    if (session == nullptr) return;
    const auto models = session->lost.use_count() - 1;
    if (models > 0) {
      throw UsageError(plural(models, "model") + " of the session " + (models == 1 ? "is" : "are") +
                           " not freed",
                       "call troika_model_free() first; the session stays open");
    }
    const std::unique_ptr<troika_session> owned(session);
    if (!*owned->lost) owned->session.leave();
  });
}

int troika_rank(const troika_session* session, int* rank) {
  return guarded([&] { need(rank, "rank") = need(session, "session").session.rank(); });
}

int troika_size(const troika_session* session, int* size) {
  return guarded([&] { need(size, "size") = need(session, "session").session.size(); });
}

int troika_all_reduce(troika_session* session, void* values, int64_t count, int type, int reduction,
                      const char* label) {
  return guarded_together(session, [&] {
    const Session& on = need(session, "session").session;
    const at::Tensor tensor = view_of(values, {count}, scalar_type(type), "values");
    on.world()
        .all_reduce(tensor, reduction_of(reduction), on.call(label_or(label, "all_reduce")))
        .wait();
  });
}

int troika_broadcast(troika_session* session, void* values, int64_t count, int type, int root,
                     const char* label) {
  return guarded_together(session, [&] {
    const Session& on = need(session, "session").session;
    const at::Tensor tensor = view_of(values, {count}, scalar_type(type), "values");
    on.world().broadcast(tensor, root, on.call(label_or(label, "broadcast"))).wait();
  });
}

int troika_barrier(troika_session* session, const char* label) {
  return guarded_together(
      session, [&] { need(session, "session").session.barrier(label_or(label, "barrier")); });
}
