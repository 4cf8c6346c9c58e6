#include <troika/base/error.h>
#include <troika/base/units.h>
#include <troika/comm/overdue.h>

namespace troika {

std::exception_ptr overdue_error(const std::string& place, Seconds timeout,
                                 const OperationRecord& record,
                                 FunctionRef<void(const Reason&)> give_up) {
  const std::string message =
      place + ": an earlier operation took more than " + format_duration(timeout.count());
  const std::exception_ptr error = std::make_exception_ptr(DeadlineError(message));
  record.leave(error);
  give_up({message, ""});
  return error;
}

}  // namespace troika
