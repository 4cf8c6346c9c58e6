// Gives a user's program its place in a job: its rank, and the group of all ranks, with one call
// for a sum, an average or a barrier.
//
//   const troika::Session session = troika::Session::from_environment();
//   const double mean = session.average(loss, "loss");
//
// A small value: copying it copies a handle.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/time.h>
#include <troika/comm/engines.h>
#include <troika/comm/group.h>
#include <troika/comm/options.h>
#include <troika/rendezvous/rendezvous.h>
#include <troika/rendezvous/world.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct SessionOptions {
  // Must be the same on all ranks, as must `engine` and `reduction_order`.
  std::string name = "session";
  std::string engine{kAutoEngine};  // as engine_names() names them
  EngineOptions::ReductionOrder reduction_order = EngineOptions::ReductionOrder::kFastest;
  // The time for one collective. The variable TROIKA_TIMEOUT, which `troika launch --timeout` sets,
  // takes precedence.
  Seconds timeout{60};
  // The time for all ranks to come.
  Seconds rendezvous_timeout{300};
  // The folder for the ranks' flight recorders, which `troika inspect` reads; made if it is
  // missing. Empty: the one in the variable TROIKA_RECORDERS, which `troika launch` sets; no files
  // where that is not set either.
  std::filesystem::path recorders = {};
  // The device of this rank, as choose_device() takes it (device/choose.h): "auto", "cpu", "cuda",
  // "cuda:1". Each rank takes the device of its local rank.
  std::string device = "auto";
  // The trace that gets every operation; may be null.
  std::shared_ptr<Trace> trace = {};
};

class Session {
 public:
  // Opens a session. Collective among all ranks that a launcher has started: troika's, torchrun,
  // Slurm or MPI. A process that no launcher has started is alone. Throws UsageError where the
  // environment makes no sense, and RendezvousError where ranks do not come or do not agree.
  [[nodiscard]] static Session from_environment(const SessionOptions& options = {});
  // Opens a session for a world of the caller's. Collective. Throws RendezvousError.
  [[nodiscard]] static Session join(World world, const SessionOptions& options = {});
  // Opens a session for ranks that have met. Collective.
  [[nodiscard]] static Session connect(Rendezvous rendezvous, const SessionOptions& options = {});
  // Makes a session on an existing group. Not collective.
  [[nodiscard]] static Session on(Group world, Seconds timeout = Seconds(60));

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  // Returns the group of all ranks, in order.
  [[nodiscard]] const Group& world() const;
  // Returns what is known of each rank, by rank; empty for a session on a group.
  [[nodiscard]] const std::vector<Member>& members() const;
  // Makes one more group, which ends with the job like world(). Collective among `ranks` (world
  // ranks in ascending order; this process is the one at `index`). Throws as troika::make_group()
  // does; UsageError for a session on a group.
  [[nodiscard]] Group make_group(std::string axis, std::vector<int> ranks, int index) const;
  // Returns a group of all ranks in order, like world(), with its own order of operations.
  // Collective. Made once for each `axis`, however often it is asked for. Throws as make_group()
  // does.
  [[nodiscard]] Group duplicate_world(const std::string& axis) const;
  // Returns the store of a job with more than one rank; throws InternalError otherwise.
  [[nodiscard]] Store& store() const;

  // Returns the device of this rank, for module->to(session.device()): the CPU for a session on a
  // group. Throws UsageError where there is none as the options ask for.
  [[nodiscard]] at::Device device() const;
  // Returns the device of this rank that `word` stands for, as choose_device() takes it. The ranks
  // of a session on a group count as those of one host. Throws UsageError naming `key`.
  [[nodiscard]] at::Device device_for(std::string_view word, const std::string& key) const;
  // Returns the time for one collective.
  [[nodiscard]] Seconds timeout() const;
  [[nodiscard]] Deadline deadline() const { return Deadline::in(timeout()); }
  // Returns the Call of an operation; `label` names it in errors and records.
  [[nodiscard]] Call call(std::string_view label) const { return {label, deadline()}; }

  // Seeds LibTorch's generators from `seed` and this rank: each rank then draws numbers of its own,
  // and the same ones in each run. Not collective.
  void seed_by_rank(std::uint64_t seed) const;

  // The methods below are collective, and throw DeadlineError or PeerError.

  // Returns the average of one number from each rank. With `count` it is weighted: each rank gives
  // a mean over so many samples. Every rank gives a count, or none does. NaN if all counts are
  // zero. Throws UsageError, on its rank alone, for a count that is negative or not finite.
  [[nodiscard]] double average(double value, std::string_view label) const;
  [[nodiscard]] double average(double value, double count, std::string_view label) const;
  [[nodiscard]] double sum(double value, std::string_view label) const;
  // Averages each metric, weighted by `count` where it is given. Throws UsageError, on all ranks,
  // if the names differ between them.
  using Metrics = std::map<std::string, double>;
  [[nodiscard]] Metrics average(const Metrics& metrics, std::string_view label = "metrics") const;
  [[nodiscard]] Metrics average(const Metrics& metrics, double count,
                                std::string_view label = "metrics") const;
  // Reduces `values` in place, in rank order or not as the engine does it.
  void reduce(std::span<double> values, ReduceOp op, std::string_view label) const;
  // Return a new tensor of this rank's shape, from a tensor of any strides on each rank. The
  // tensors have equal dtype and number of elements, which go together in row-major order.
  [[nodiscard]] at::Tensor average(const at::Tensor& tensor, std::string_view label) const;
  [[nodiscard]] at::Tensor sum(const at::Tensor& tensor, std::string_view label) const;
  // Returns a text from each rank, by rank.
  [[nodiscard]] std::vector<std::string> gather(std::string_view text,
                                                std::string_view label) const;
  void barrier(std::string_view label) const;

  // Ends every operation of every group of the session, with PeerError, since this rank has failed
  // for `reason`. That is a line, and a second one that is the hint. The others are told it where
  // they wait for this rank. Any thread.
  void abort(const std::string& reason) const;

  // Leaves at the end of a job that went well: where rank 0 keeps the store, it stays until all
  // others are done with it. A rank that ends without it costs the others nothing but a message
  // about a store that is gone. Does nothing for a session on a group, or a lone process.
  void leave(Seconds timeout = Seconds(300)) const;

 private:
  struct State;
  explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace troika
