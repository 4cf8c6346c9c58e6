// The sessions and models that a program holds. What it holds them by has the form of a pointer, as
// C and Fortran pass those on, but is a number that is given out once and never followed: one that
// has been freed, is of the other kind, or is no handle at all, is refused in words.
#pragma once

#include <troika/capi/array_model.h>
#include <troika/session/session.h>
#include <troika/troika.h>

#include <memory>
#include <optional>
#include <string>

namespace troika {

struct OpenSession {
  Session session;
  int threads = 1;  // that OpenMP and BLAS compute with, in calls on it
  int models_made = 0;
  int models_open = 0;
  // Why it can only be closed: a rank is gone, did not come in time, or has made another call.
  // There is no one to take leave of then.
  std::optional<std::string> lost = {};
};

struct OpenModel {
  OpenModel(std::shared_ptr<OpenSession> on, ArrayModel own)
      : session(std::move(on)), model(std::move(own)) {
    ++session->models_open;
  }
  ~OpenModel() { --session->models_open; }
  OpenModel(const OpenModel&) = delete;
  OpenModel& operator=(const OpenModel&) = delete;

  std::shared_ptr<OpenSession> session;
  ArrayModel model;
};

// The functions below are thread-safe.
[[nodiscard]] troika_session* handle_for(std::shared_ptr<OpenSession> session);
[[nodiscard]] troika_model* handle_for(std::shared_ptr<OpenModel> model);
// Return what a handle stands for. Throw UsageError saying what is wrong with it.
[[nodiscard]] std::shared_ptr<OpenSession> session_of(const troika_session* handle);
[[nodiscard]] std::shared_ptr<OpenModel> model_of(const troika_model* handle);
// Take a handle away; what it stands for ends with its last user.
void forget(const troika_session* handle);
void forget(const troika_model* handle);

}  // namespace troika
