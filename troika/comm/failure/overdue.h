// An operation that its deadline has kept from ever starting, since an earlier one hangs
// (work_queue.h).
#pragma once

#include <troika/base/function_ref.h>
#include <troika/base/time.h>
#include <troika/comm/failure/abort_reason.h>
#include <troika/observe/recorder.h>

#include <exception>
#include <string>

namespace troika {

// Its DeadlineError. `operation` is the operation in words, `fail` breaks the group; by then the
// error is left for the launcher, for what is under way fails of the same reason.
[[nodiscard]] std::exception_ptr overdue_error(const std::string& operation, Seconds timeout,
                                               const OperationRecord& record,
                                               FunctionRef<void(const AbortReason&)> fail);

}  // namespace troika
