// What a trainer asks of a sync whose parameters lie on servers: a process that trains for them
// (RemoteWork), and the one that looks on, evaluates and saves (RemoteView).
#pragma once

#include <troika/base/index_range.h>
#include <troika/optim/optimizer.h>
#include <troika/param/state_dict.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace troika {

// The samples of one pass, dealt out as the run goes.
struct DealtSamples {
  std::int64_t step = 0;    // from 1
  IndexRange samples = {};  // by ordinal, of all that the run trains on
};

// The figures of a pass, beside its gradients.
struct RemoteUpdate {
  double learning_rate = 0;
  double scale = 1;             // makes the gradients their mean, clipped
  double mean = 1;              // makes them their mean
  double unscale = 1;           // before all that: takes out what their losses were scaled by
  double norm = 0;              // of the mean gradient, before clipping
  double loss = 0, weight = 0;  // sums
  std::int64_t valid = 0;
  std::string skipped;  // why there is nothing to apply; empty where there is
};

class RemoteWork {
 public:
  virtual ~RemoteWork() = default;
  // Waits for the next samples, with the newest parameters in the arena; nullopt: all is trained.
  // Throws DeadlineError, PeerError.
  [[nodiscard]] virtual std::optional<DealtSamples> next_samples() = 0;
  // Returns the steps that are to be taken on such samples before what they have changed is
  // pushed; 0: none, and their gradients are pushed.
  [[nodiscard]] virtual std::int64_t local_steps() const { return 0; }
  // Sends the gradients that are in the arena, or what has changed there since next_samples().
  virtual void push(const RemoteUpdate& update) = 0;
};

// A step of all workers together.
struct RemoteStep {
  std::int64_t step = 0;
  double loss = 0, weight = 0;  // sums
  std::int64_t valid = 0;
  double norm = 0;  // of the step's mean gradient, or the root mean square of those of its updates
  std::int64_t updates = 0;
  std::map<std::int64_t, std::int64_t> staleness;  // updates by their staleness
  std::int64_t workers = 0;
  double seconds = 0;  // since the step before was complete
  std::int64_t lost_samples = 0;
  std::string skipped;  // why there was no update; empty where there was one
};

// The state that workers begin with.
struct RemoteStart {
  std::int64_t step = 0, samples = 0, updates = 0;  // that are done
  std::span<const NamedState> state = {};           // of the optimiser
};

class RemoteView {
 public:
  virtual ~RemoteView() = default;
  // Gives the servers the arena's values and the optimiser's state, and lets workers begin.
  virtual void open(const RemoteStart& start) = 0;
  [[nodiscard]] virtual bool is_open() const = 0;
  // Waits for the next step to be complete.
  [[nodiscard]] virtual RemoteStep wait_for_step() = 0;
  // Brings the newest values to the arena.
  virtual void fetch() = 0;
  // Brings values and state, for a checkpoint behind `step`, while no worker is at anything.
  // Returns the updates that are in them.
  virtual std::int64_t fetch_all(std::int64_t step, std::span<const NamedState> state) = 0;
  // Sends the workers home, and ends the servers. Call it last.
  virtual void close() = 0;
};

}  // namespace troika
