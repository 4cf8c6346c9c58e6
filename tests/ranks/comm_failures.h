// For tests of operations that fail.
#pragma once

#include <troika/base/error.h>
#include <troika/observe/recorder.h>
#include <troika/observe/snapshot.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ranks/rank_helper.h"

namespace troika::test {

// An error comes within so many seconds: after a deadline of 1 s at most,
// failure_timing::kDiagnosis and half a second for a step between hosts, and as much again for a
// machine that others use, too. What would end the operation otherwise takes 20 s and more.
inline constexpr double kSoon = 12;

// Reports which error `action` throws, its message and hint, and after how many seconds.
template <class Action>
void report_error(const Rank& rank, const std::string& name, const Action& action) {
  const auto start = Clock::now();
  std::string type = "none";
  std::string message;
  try {
    action();
  } catch (const DeadlineError& error) {
    type = "DeadlineError";
    message = std::string(error.what()) + " | " + error.hint();
  } catch (const PeerError& error) {
    type = "PeerError";
    message = std::string(error.what()) + " | " + error.hint();
  } catch (const UsageError& error) {
    type = "UsageError";
    message = std::string(error.what()) + " | " + error.hint();
  } catch (const RendezvousError& error) {
    type = "RendezvousError";
    message = std::string(error.what()) + " | " + error.hint();
  }
  rank.report(name, type);
  rank.report(name + " message", message);
  rank.report(name + " seconds", std::to_string(Seconds(Clock::now() - start).count()));
}

inline Group watched_group(const Rank& rank) {
  EngineOptions options = rank.options();
  options.recorders = rank.folder();
  options.observers.recorder =
      Recorder::create(recorder_path(rank.folder(), rank.index()), rank.index(), "here");
  std::vector<int> ranks(static_cast<std::size_t>(rank.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_group("data", ranks, rank.index(), options);
}

// Waits until the process whose number rank 1 has left in the store as "pid" is stopped, and
// returns that number: one that is continued before it stops would stay stopped. Only the parent of
// a process is told that it has stopped: rank 0 looks, and tells the others.
inline int pid_once_stopped(Rank& rank) {
  const int pid = std::stoi(rank.store().get("pid", Deadline::in(Seconds(30))));
  const Deadline enough = Deadline::in(Seconds(30));
  while (rank.index() == 0 && look_at_process(1, pid).process != ProcessState::kStopped) {
    if (enough.passed()) throw InternalError("rank 1 does not stop");
    std::this_thread::yield();
  }
  if (rank.index() == 0) rank.store().set("stopped", "");
  (void)rank.store().get("stopped", Deadline::in(Seconds(30)));
  return pid;
}

// The engine across hosts, whose words differ, has comm_hierarchical_test.cc.
inline std::vector<TestedEngine> engines_of_one_part() {
  std::vector<TestedEngine> engines = tested_engines();
  std::erase_if(engines, [](const TestedEngine& engine) {
    return engine.options.pretend != Pretend::kNothing;
  });
  return engines;
}

}  // namespace troika::test
