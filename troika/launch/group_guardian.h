// Ends what ranks have started when their launcher is killed. The kernel ends the ranks then (see
// ChildProcess), but not the children of a rank that is a script. A small process stays behind the
// launcher and ends them.
#pragma once

#include <troika/base/file.h>

#include <sys/types.h>

namespace troika {

// A process of its own, in a session of its own. It is told of process groups over a socket, and
// kills those that are left when the launcher's end of the socket is closed. Where it cannot be
// started, groups are watched by no one.
class GroupGuardian {
 public:
  GroupGuardian();
  GroupGuardian(const GroupGuardian&) = delete;
  GroupGuardian& operator=(const GroupGuardian&) = delete;
  // Ends the process, and with it every group that it has been told of.
  ~GroupGuardian();

  // Returns the launcher's end of the socket, for watch_group() and forget_group(); -1: none.
  [[nodiscard]] int socket() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  pid_t pid_ = -1;
};

// Tell the guardian behind a socket of a process group, and that it has ended. Make one system
// call, and nothing else; do nothing for a socket of -1.
void watch_group(int socket, pid_t group);
void forget_group(int socket, pid_t group);

}  // namespace troika
