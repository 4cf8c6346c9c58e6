#include <troika/base/error.h>
#include <troika/launch/exit_report.h>
#include <troika/launch/launcher_watch.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace troika {
namespace {

bool is_hung_up(int socket) {
  pollfd watched{socket, 0, 0};
  return poll(&watched, 1, 0) > 0;
}

// Until either the launcher's end of `socket` is closed, or `stop` is readable.
void kill_at_hang_up(int socket, int stop) {
  pollfd watched[] = {{socket, 0, 0}, {stop, POLLIN, 0}};
  while (poll(watched, 2, -1) < 0 && errno == EINTR) {
  }
  if (watched[1].revents == 0) kill(getpid(), SIGKILL);
}

}  // namespace

LauncherWatch::LauncherWatch(const Environment& environment) {
  const auto launcher = environment.number("TROIKA_LAUNCHER_PID");
  if (!launcher || getppid() == *launcher) return;
  const int reports = report_descriptor(environment);
  if (reports < 0) return;
  if (is_hung_up(reports)) {
    throw PeerError("the launcher (pid " + std::to_string(*launcher) +
                    ") ended before this rank had started");
  }
  // Of its own: the Reporter closes the other once it has reported.
  socket_ = UniqueFd(fcntl(reports, F_DUPFD_CLOEXEC, 0));
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  check(socket_.valid() && stop_.valid(), "no descriptors to watch the launcher by");
  thread_ = std::thread(kill_at_hang_up, socket_.get(), stop_.get());
}

LauncherWatch::~LauncherWatch() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace troika
