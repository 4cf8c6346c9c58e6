// What the functions of troika/troika.h have in common: what they give back to the caller's thread,
// exceptions that become codes, and tensors that view the caller's arrays. Internal to this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/capi/caller_state.h>
#include <troika/capi/handles.h>
#include <troika/troika.h>

#include <memory>
#include <string>
#include <utility>

namespace troika {

// Returns the failure of the last call of this thread that failed.
[[nodiscard]] Failure& last_failure();
// Keeps a failure, and returns its code.
int remember(Failure failure);

// Runs `work`, which may change settings of the thread through the CallerState that it is given.
template <class Work>
int guarded(const Work& work) noexcept {
  try {
    CallerState caller;
    work(caller);
    return TROIKA_OK;
  } catch (const std::exception& error) {
    return remember(failure_of(error));
  } catch (...) {
    return remember({ExitCode::kInternal, "internal error: an exception of no known type", ""});
  }
}

// Runs a collective call. Marks the session as lost where a rank is gone, its device has failed, or
// ranks make different calls; throws RendezvousError where it was before.
template <class Work>
void together(OpenSession& on, const Work& work) {
  if (on.lost) {
    throw RendezvousError("the session has ended before: " + *on.lost, "it can only be closed");
  }
  try {
    work();
  } catch (const Error& error) {
    const bool ends = error.code() == ExitCode::kRendezvous ||
                      error.code() == ExitCode::kRankDied ||  // it has told the others
                      error.code() == ExitCode::kInternal;
    if (ends) on.lost = error.what();
    throw;
  }
}

// Guard a call on a session, or a model.
template <class Work>
int guarded_on(const troika_session* session, const Work& work) noexcept {
  return guarded([&](CallerState& caller) {
    const std::shared_ptr<OpenSession> on = session_of(session);
    caller.use_threads(on->threads);
    work(*on);
  });
}
template <class Work>
int guarded_on(const troika_model* model, const Work& work) noexcept {
  return guarded([&](CallerState& caller) {
    const std::shared_ptr<OpenModel> on = model_of(model);
    caller.use_threads(on->session->threads);
    work(on->model);
  });
}

// Guard a collective call on a session, or a model.
template <class Work>
int guarded_together(const troika_session* session, const Work& work) noexcept {
  return guarded_on(session, [&](OpenSession& on) { together(on, [&] { work(on); }); });
}
template <class Work>
int guarded_together(const troika_model* model, const Work& work) noexcept {
  return guarded([&](CallerState& caller) {
    const std::shared_ptr<OpenModel> on = model_of(model);
    caller.use_threads(on->session->threads);
    together(*on->session, [&] { work(on->model); });
  });
}

template <class T>
T& need(T* pointer, const std::string& name) {
  if (pointer == nullptr) throw UsageError(name + " is NULL");
  return *pointer;
}

// Returns the type of a troika_type. Throws UsageError.
[[nodiscard]] at::ScalarType scalar_type(int type);
// Returns a tensor that views the caller's memory. Write to none that was given as const. Throws
// UsageError naming the array.
[[nodiscard]] at::Tensor view_of(const void* values, at::IntArrayRef shape, at::ScalarType type,
                                 const std::string& name);

}  // namespace troika
