// What the functions of troika/troika.h have in common: their handles, exceptions that become
// codes, and tensors that view the caller's arrays. Internal to this folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/error.h>
#include <troika/base/failure.h>
#include <troika/capi/array_model.h>
#include <troika/session/session.h>
#include <troika/troika.h>

#include <memory>
#include <string>
#include <utility>

// `lost`: a rank is gone, or did not come in time: there is no one to take leave of. A session and
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

// Returns the failure of the last call of this thread that failed.
[[nodiscard]] Failure& last_failure();
// Keeps a failure, and returns its code.
int remember(Failure failure);

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

// Guards a collective call on a session, or a model.
template <class Handle, class Work>
int guarded_together(const Handle* handle, const Work& work) noexcept {
  return guarded([&] {
    try {
      work();
    } catch (const RendezvousError&) {
      if (handle != nullptr) *handle->lost = true;
      throw;
    } catch (const RankDiedError&) {  // its device has failed: it has told the others
      if (handle != nullptr) *handle->lost = true;
      throw;
    } catch (const InternalError&) {  // as when the device is out of memory
      if (handle != nullptr) *handle->lost = true;
      throw;
    }
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
