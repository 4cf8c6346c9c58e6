// Ends a rank when the launcher that has started it is gone, so that no rank outlives its job.
#pragma once

#include <troika/base/file.h>
#include <troika/rendezvous/environment.h>

#include <thread>

namespace troika {

// While it lives, this process is killed as soon as the launcher of ours that has started it has
// ended, or has abandoned the rank. The kernel does so for the launcher's own children (see
// ChildProcess). Behind a wrapper, such as timeout, a shell or a profiler, a thread watches the
// report socket instead. Does nothing without a launcher of ours, or where the wrapper has closed
// that socket: the job's store then shows that the launcher is gone.
class LauncherWatch {
 public:
  // Starts the watch. Make it before the Reporter sends anything. Throws PeerError when the
  // launcher has ended already.
  explicit LauncherWatch(const Environment& environment);
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;
  ~LauncherWatch();

 private:
  UniqueFd socket_, stop_;
  std::thread thread_;
};

}  // namespace troika
