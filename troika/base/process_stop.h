// Stopping a process, as Ctrl-Z does, without the time that it is stopped for running out on it.
#pragma once

namespace troika {

// Stops this process until it is sent SIGCONT, as SIGTSTP does by default. Clock stands still
// meanwhile. Returns at once in an orphaned process group, where no process could let it go on.
void stop_process();

// Makes SIGTSTP stop this process in the same way, from now on. Does nothing where the signal is
// ignored or handled already. Meant for ranks whose launcher, one of ours, stops them and lets them
// go on itself.
void stop_clock_when_stopped();

}  // namespace troika
