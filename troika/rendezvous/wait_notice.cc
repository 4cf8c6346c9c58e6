#include <troika/base/units.h>
#include <troika/observe/log.h>
#include <troika/rendezvous/wait_notice.h>

#include <algorithm>

namespace troika {

Deadline WaitNotice::next() const {
  return Deadline::in(std::min(due_.left(), deadline_.left()));
}

void WaitNotice::log_if_due(const std::function<std::string()>& what) {
  if (!due_.passed() || deadline_.passed()) return;
  log_info("waiting for " + what() + " (" + format_fixed(deadline_.waited().count(), 0) + " s of " +
           format_fixed(deadline_.timeout().count(), 0) + " s)");
  pause_ = std::min(2 * pause_, failure_timing::kLongestNotice);
  due_ = Deadline::in(pause_);
}

bool wait_with_notice(Store& store, const std::vector<std::string>& keys, const Deadline& deadline,
                      const std::function<std::string()>& what) {
  WaitNotice notice(deadline);
  do {
    if (store.wait(keys, notice.next())) return true;
    notice.log_if_due(what);
  } while (!deadline.passed());
  return false;
}

}  // namespace troika
