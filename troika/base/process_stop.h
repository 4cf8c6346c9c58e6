// Stopping a process, as Ctrl-Z does, without the time that it is stopped for running out on it.
#pragma once

namespace troika {

// Stops this process until it is sent SIGCONT, as SIGTSTP does by default; Clock stands still
// meanwhile. Returns at once where nobody is there to let it go on: in an orphaned process group.
void stop_process();

// Has SIGTSTP stop this process in the same way, from now on. Does nothing where the signal is
// ignored or handled already. For ranks that a launcher of ours has started, which it stops and
// lets go on with itself.
void stop_clock_when_stopped();

}  // namespace troika
