// What troika.f90 needs beside <troika/troika.h>. Fortran's arrays have shapes, which the module
// compares with the model's before it calls C.
#include <troika/capi/c_calls.h>

extern "C" {
int troika_fortran_refuse(troika_model* model, int call, const char* error, const char* hint);
}

using namespace troika;  // NOLINT(google-build-using-namespace): what follows is a C function

// Takes the place of a call whose arrays the module refuses on this rank. Collective where the call
// is: all ranks get the error, and the session goes on. `call` is one of those in troika_c.f90.
int troika_fortran_refuse(troika_model* model, int call, const char* error, const char* hint) {
  enum { kStep = 0, kLoss = 1 };
  const auto refuse = [&]() -> ArrayBatch { throw UsageError(error, hint); };
  if (call != kStep && call != kLoss) return guarded_on(model, [&](ArrayModel&) { refuse(); });
  return guarded_together(
      model, [&](ArrayModel& own) { (void)(call == kStep ? own.step(refuse) : own.loss(refuse)); });
}
