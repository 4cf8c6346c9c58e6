// The functions of troika/troika.h. Nothing here decides anything: arguments are checked, arrays
// become tensors that view them, and exceptions become codes.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/base/text.h>
#include <troika/base/version.h>
#include <troika/capi/array_model.h>
#include <troika/comm/engines.h>
#include <troika/comm/mpi/bootstrap.h>
#include <troika/observe/machine.h>
#include <troika/troika.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// `lost`: a rank is gone, or did not come in time: there is nobody to take leave of. A session and
// its models share it.
struct troika_session {
  troika::Session session;
  std::shared_ptr<bool> lost = std::make_shared<bool>(false);
};
struct troika_model {
  troika::ArrayModel model;
  std::shared_ptr<bool> lost;
};

namespace troika {
namespace {

// Of the last call of this thread that failed.
Failure& last_failure() {
  static thread_local Failure failure;
  return failure;
}

int remember(Failure failure) {
  const int code = static_cast<int>(failure.code);
  last_failure() = std::move(failure);
  return code;
}

template <class Work>
int guarded(const Work& work) noexcept {
  try {
    work();
    return TROIKA_OK;
  } catch (const std::exception& error) {
    return remember(failure_of(error));
  } catch (...) {
    return remember({ExitCode::kInternal, "internal error: an exception of no known type", ""});
  }
}

// For collective calls on a session, or a model.
template <class Handle, class Work>
int guarded_together(const Handle* handle, const Work& work) noexcept {
  return guarded([&] {
    try {
      work();
    } catch (const RendezvousError&) {
      if (handle != nullptr) *handle->lost = true;
      throw;
    }
  });
}

template <class T>
T& need(T* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(std::string(name) + " is NULL");
  return *pointer;
}

std::string_view label_or(const char* label, std::string_view otherwise) {
  return label != nullptr ? std::string_view(label) : otherwise;
}

at::ScalarType scalar_type(int type) {
  switch (type) {
    case TROIKA_FLOAT:
      return at::kFloat;
    case TROIKA_DOUBLE:
      return at::kDouble;
    case TROIKA_INT32:
      return at::kInt;
    case TROIKA_INT64:
      return at::kLong;
    default:
      throw UsageError("type " + std::to_string(type) +
                       " is none of TROIKA_FLOAT, TROIKA_DOUBLE, "
                       "TROIKA_INT32, TROIKA_INT64");
  }
}

at::ScalarType floating_type(int type) {
  const at::ScalarType scalar = scalar_type(type);
  if (type != TROIKA_FLOAT && type != TROIKA_DOUBLE) {
    throw UsageError("models take TROIKA_FLOAT or TROIKA_DOUBLE");
  }
  return scalar;
}

ReduceOp reduction_of(int reduction) {
  constexpr ReduceOp kAll[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};
  if (reduction < 0 || reduction >= static_cast<int>(std::size(kAll))) {
    throw UsageError("reduction " + std::to_string(reduction) +
                     " is none of TROIKA_SUM, TROIKA_AVERAGE, TROIKA_MAX, TROIKA_MIN");
  }
  return kAll[reduction];
}

// A tensor that views the caller's memory. Nothing writes to an array that was given as const.
at::Tensor view_of(const void* values, at::IntArrayRef shape, at::ScalarType type,
                   const char* name) {
  const bool empty = std::ranges::any_of(shape, [](std::int64_t extent) { return extent == 0; });
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw UsageError(std::string(name) + ": a negative number of values");
  }
  if (empty) return at::empty(shape, type);
  (void)need(static_cast<const char*>(values), name);
  return at::from_blob(const_cast<void*>(values), shape, type);  // NOLINT: read only, as above
}

// Those that exchange values in host memory.
std::string engine_called(std::string_view name) {
  std::vector<std::string_view> offered;
  std::string refusal;
  for (const std::string_view each : engine_words()) {
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

// What is wrong with an argument on one rank is told on all, from inside ArrayModel.
void create(troika_session* session, const std::function<Recipe()>& read, troika_model** result) {
  const Session& on = need(session, "session").session;
  const auto checked = [&] {
    (void)need(result, "model");
    return read();
  };
  *result = new troika_model{ArrayModel(on, checked), session->lost};
}

at::Tensor inputs_of(const MlpOptions& shape, const void* inputs, std::int64_t samples, int type) {
  return view_of(inputs, {samples, shape.input_dim}, floating_type(type), "inputs");
}

ArrayBatch batch_of(const ArrayModel& model, const void* inputs, const void* targets,
                    std::int64_t samples, int type) {
  const at::ScalarType scalar = floating_type(type);
  const MlpOptions& shape = model.shape();
  const bool classes = model.predicts_classes();
  return {inputs_of(shape, inputs, samples, type),
          classes ? view_of(targets, {samples}, scalar, "targets")
                  : view_of(targets, {samples, shape.output_dim}, scalar, "targets")};
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

int troika_model_create(troika_session* session, const char* recipe, troika_model** model) {
  return guarded_together(session, [&] {
    create(
        session, [&] { return parse_array_recipe(&need(recipe, "recipe"), "recipe"); }, model);
  });
}

int troika_model_create_from_file(troika_session* session, const char* path, troika_model** model) {
  return guarded_together(session, [&] {
    create(
        session, [&] { return load_array_recipe(&need(path, "path")); }, model);
  });
}

int troika_model_free(troika_model* model) {
  return guarded([&] { delete model; });
}

int troika_model_step(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss) {
  return guarded_together(model, [&] {
    ArrayModel& own = need(model, "model").model;
    const double mean = own.step([&] { return batch_of(own, inputs, targets, samples, type); });
    if (loss != nullptr) *loss = mean;
  });
}

int troika_model_loss(troika_model* model, const void* inputs, const void* targets, int64_t samples,
                      int type, double* loss) {
  return guarded_together(model, [&] {
    ArrayModel& own = need(model, "model").model;
    const double mean = own.loss([&] {
      (void)need(loss, "loss");
      return batch_of(own, inputs, targets, samples, type);
    });
    *loss = mean;
  });
}

int troika_model_predict(troika_model* model, const void* inputs, int64_t samples, int type,
                         void* outputs) {
  return guarded([&] {
    const ArrayModel& own = need(model, "model").model;
    const at::Tensor result = own.predict(inputs_of(own.shape(), inputs, samples, type));
    view_of(outputs, {samples, own.shape().output_dim}, floating_type(type), "outputs")
        .copy_(result);
  });
}

int troika_model_steps(const troika_model* model, int64_t* steps) {
  return guarded([&] { need(steps, "steps") = need(model, "model").model.steps(); });
}

int troika_model_save(troika_model* model, const char* path) {
  return guarded_together(model, [&] { need(model, "model").model.save(&need(path, "path")); });
}

int troika_model_load(troika_model* model, const char* path) {
  return guarded_together(model, [&] { need(model, "model").model.load(&need(path, "path")); });
}
