// The functions of troika/troika.h on sessions. Nothing here decides anything: arguments are
// checked, arrays become tensors that view them, and exceptions become codes.
#include <ATen/ATen.h>
#include <troika/base/text.h>
#include <troika/base/version.h>
#include <troika/capi/c_calls.h>
#include <troika/comm/engines.h>
#include <troika/comm/mpi/bootstrap.h>
#include <troika/config/key.h>
#include <troika/observe/machine.h>
#include <troika/rendezvous/failure_report.h>
#include <troika/session/call_agreement.h>
#include <troika/session/consensus.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
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

std::string_view reduction_name(int reduction) {
  (void)reduction_of(reduction);
  constexpr std::string_view kAll[] = {"TROIKA_SUM", "TROIKA_AVERAGE", "TROIKA_MAX", "TROIKA_MIN"};
  return kAll[reduction];
}

void check_root(int root, int ranks) {
  if (root >= 0 && root < ranks) return;
  throw UsageError("root " + std::to_string(root) + " is none of " + plural(ranks, "rank"),
                   "ranks are counted from 0");
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
  for (const double seconds : {given->timeout_seconds, given->rendezvous_timeout_seconds}) {
    if (seconds <= kLongestTimeout) continue;
    std::ostringstream text;
    text << "a time-out of " << seconds << " s is longer than " << kLongestTimeout << " s";
    throw UsageError(text.str());
  }
  if (given->timeout_seconds > 0) options.timeout = Seconds(given->timeout_seconds);
  if (given->rendezvous_timeout_seconds > 0) {
    options.rendezvous_timeout = Seconds(given->rendezvous_timeout_seconds);
  }
  if (given->threads < 0) {
    throw UsageError("a negative number of threads: " + std::to_string(given->threads));
  }
  // OpenMP ends the process where it cannot start as many.
  constexpr int kOfCore = 16;
  if (const int cores = usable_cores(); given->threads > kOfCore * cores) {
    throw UsageError(std::to_string(given->threads) + " threads are more than " +
                         std::to_string(kOfCore) + " for each core",
                     "more than one for each is of no use; here " + plural(cores, "core") +
                         (cores == 1 ? " is" : " are") + " usable");
  }
  if (given->recorders != nullptr) options.recorders = given->recorders;
  return options;
}

// Ranks that share a host share its cores, unless somebody has said otherwise.
int threads_for(const Session& session, const troika_options* given) {
  if (given != nullptr && given->threads > 0) return given->threads;
  if (session.size() == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) {
    return at::get_num_threads();
  }
  const auto& members = session.members();
  const std::string& here = members[static_cast<std::size_t>(session.rank())].host_identity;
  const auto neighbours = std::ranges::count_if(
      members, [&](const Member& member) { return member.host_identity == here; });
  return threads_of_rank(usable_cores(), static_cast<int>(neighbours));
}

// Opens a session in the world that `find` returns. What this rank refuses is told to the others,
// which would wait for it.
int open_as(const troika_options* options, troika_session** result,
            const std::function<World(const Deadline&)>& find) {
  if (result != nullptr) *result = nullptr;
  return guarded([&](CallerState&) {
    SessionOptions given;
    const auto refusal = failure_in([&] {
      (void)need(result, "session");
      given = session_options(options);
    });
    const Deadline deadline = Deadline::in(given.rendezvous_timeout);
    std::optional<World> world;
    const auto unreachable = failure_in([&] { world = find(deadline); });
    if (refusal) {
      // The failure of this rank counts, also where the others cannot be told of it.
      if (world) static_cast<void>(failure_in([&] { report_failure(*world, *refusal, deadline); }));
      throw_failure(*refusal);
    }
    if (unreachable) throw_failure(*unreachable);
    Session session = Session::join(*std::move(world), given);
    const int threads = threads_for(session, options);
    at::set_num_threads(threads);  // also MKL's, which the caller does not see
    *result = handle_for(std::make_shared<OpenSession>(std::move(session), threads));
  });
}

// How long a rank waits for the others before it closes its session without them. They may have
// more to do before they close theirs.
constexpr Seconds kPatienceOfClosing{300};

// Collective, where the others are there. Throws RendezvousError where another rank makes another
// call.
void take_leave(const OpenSession& open) {
  try {
    agree_on_call(open.session, {.name = kClosing, .timeout = kPatienceOfClosing}, std::nullopt);
  } catch (const DeadlineError&) {
    return;  // each has done its work
  } catch (const PeerError&) {
    return;
  }
  open.session.leave();
}

std::string type_name(int type) {
  constexpr const char* kAll[] = {"TROIKA_FLOAT", "TROIKA_DOUBLE", "TROIKA_INT32", "TROIKA_INT64"};
  return kAll[type];
}

// Collective. Checks the arguments of a call on values of the caller's, and that all ranks give the
// same: returns the values. `more` is a root or a reduction, in words.
at::Tensor agreed_values(const OpenSession& on, std::string_view call, const char* label,
                         void* values, int64_t count, int type,
                         const std::function<std::string()>& more) {
  at::Tensor tensor;
  std::string options;
  const auto refusal = failure_in([&] {
    tensor = view_of(values, {count}, scalar_type(type), "values");
    options = plural(count, "value") + " of " + type_name(type) + more();
  });
  const auto in_words = [&] { return options; };
  const std::string remark = label == nullptr ? "" : quote(label, 200);
  agree_on_call(on.session,
                {.name = call,
                 .remark = remark,
                 .label = label_or(label, ""),
                 .options = number_of_text(options),
                 .describe_options = in_words},
                refusal);
  return tensor;
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
  return open_as(options, session, [](const Deadline&) {
    const Environment environment = Environment::of_process();
    const std::optional<World> world = world_from_environment(environment);
    return world ? *world : single_process_world(environment);
  });
}

int troika_open_mpi(int communicator, const troika_options* options, troika_session** session) {
  return open_as(options, session, [&](const Deadline& deadline) {
    return world_of_communicator(communicator, deadline);
  });
}

int troika_open_alone(const troika_options* options, troika_session** session) {
  return open_as(options, session,
                 [](const Deadline&) { return single_process_world(Environment::of_process()); });
}

int troika_close(troika_session* session) {
  return guarded([&](CallerState& caller) {
    if (session == nullptr) return;
    const std::shared_ptr<OpenSession> open = session_of(session);
    if (open->models_open > 0) {
      throw UsageError(plural(open->models_open, "model") + " of the session " +
                           (open->models_open == 1 ? "is" : "are") + " not freed",
                       "call troika_model_free() first; the session stays open");
    }
    caller.use_threads(open->threads);
    forget(session);
    if (!open->lost) take_leave(*open);
  });
}

int troika_rank(const troika_session* session, int* rank) {
  return guarded_on(session,
                    [&](const OpenSession& on) { need(rank, "rank") = on.session.rank(); });
}

int troika_size(const troika_session* session, int* size) {
  return guarded_on(session,
                    [&](const OpenSession& on) { need(size, "size") = on.session.size(); });
}

int troika_all_reduce(troika_session* session, void* values, int64_t count, int type, int reduction,
                      const char* label) {
  return guarded_together(session, [&](const OpenSession& on) {
    const at::Tensor tensor =
        agreed_values(on, "troika_all_reduce", label, values, count, type,
                      [&] { return ", " + std::string(reduction_name(reduction)); });
    on.session.world()
        .all_reduce(tensor, reduction_of(reduction), on.session.call(label_or(label, "all_reduce")))
        .wait();
  });
}

int troika_broadcast(troika_session* session, void* values, int64_t count, int type, int root,
                     const char* label) {
  return guarded_together(session, [&](const OpenSession& on) {
    const at::Tensor tensor =
        agreed_values(on, "troika_broadcast", label, values, count, type, [&] {
          check_root(root, on.session.size());
          return " from rank " + std::to_string(root);
        });
    on.session.world()
        .broadcast(tensor, root, on.session.call(label_or(label, "broadcast")))
        .wait();
  });
}

int troika_barrier(troika_session* session, const char* label) {
  return guarded_together(session, [&](const OpenSession& on) {
    const std::string remark = label == nullptr ? "" : quote(label, 200);
    agree_on_call(on.session,
                  {.name = "troika_barrier", .remark = remark, .label = label_or(label, "barrier")},
                  std::nullopt);  // which is a barrier
  });
}
