#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/failure/overdue.h>

namespace troika {

std::exception_ptr overdue_error(const std::string& operation, Seconds timeout,
                                 const OperationRecord& record,
                                 FunctionRef<void(const AbortReason&)> fail) {
  const std::string message =
      operation + ": an earlier operation took more than " + format_duration(timeout.count());
  const std::exception_ptr error = std::make_exception_ptr(DeadlineError(message));
  record.record_error(error);
  fail({message, ""});
  return error;
}

}  // namespace troika
