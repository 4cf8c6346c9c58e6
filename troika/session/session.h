// What a program of one's own has of a job: who it is among the ranks, and the group of all of
// them, with one call for a sum, an average or a barrier.
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
  std::string engine{kAutoEngine};  // as engine_words() names them
  EngineOptions::ReductionOrder reduction_order = EngineOptions::ReductionOrder::kFastest;
  // For one collective. The variable TROIKA_TIMEOUT, which `troika launch --timeout` sets, takes
  // precedence.
  Seconds timeout{60};
  // For all ranks to come.
  Seconds rendezvous_timeout{300};
  // The folder for the ranks' flight recorders, which `troika inspect` reads; made if it is
  // missing. Empty: the one in the variable TROIKA_RECORDERS, which `troika launch` sets; no files
  // where that is not set either.
  std::filesystem::path recorders = {};
  // Told of every operation; may be null.
  std::shared_ptr<Trace> trace = {};
};

class Session {
 public:
  // Collective among all ranks that a launcher has started: ours, torchrun, Slurm or MPI. A process
  // that nobody has launched is alone. Throws UsageError where the environment makes no sense, and
  // RendezvousError where ranks do not come or do not agree.
  [[nodiscard]] static Session from_environment(const SessionOptions& options = {});
  // Collective: the same, for a world of the caller's. Throws RendezvousError.
  [[nodiscard]] static Session join(World world, const SessionOptions& options = {});
  // Collective: the same, for ranks that have met.
  [[nodiscard]] static Session connect(Rendezvous rendezvous, const SessionOptions& options = {});
  // On a group that is there already; not collective.
  [[nodiscard]] static Session on(Group world, Seconds timeout = Seconds(60));

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  // All ranks, in order.
  [[nodiscard]] const Group& world() const;
  // What is known of each rank, by rank; empty for a session on a group.
  [[nodiscard]] const std::vector<Member>& members() const;
  // Collective among `ranks` (world ranks in ascending order; this process is the one at `index`):
  // one more group, which ends with the job like world(). Throws as make_group() does; UsageError
  // for a session on a group.
  [[nodiscard]] Group make_group(std::string axis, std::vector<int> ranks, int index) const;
  // Collective: all ranks in order, like world(), but an order of operations of its own. Made once
  // for each `axis`, however often it is asked for. Throws as make_group() does.
  [[nodiscard]] Group duplicate_world(const std::string& axis) const;
  // Of a job with more than one rank; throws InternalError otherwise.
  [[nodiscard]] Store& store() const;

  // For one collective.
  [[nodiscard]] Seconds timeout() const;
  [[nodiscard]] Deadline deadline() const { return Deadline::in(timeout()); }
  // `label` names the operation in errors and records.
  [[nodiscard]] Call call(std::string_view label) const { return {label, deadline()}; }

  // Seeds LibTorch's generators from `seed` and this rank: each rank then draws numbers of its own,
  // and the same ones in each run. Not collective.
  void seed_by_rank(std::uint64_t seed) const;

  // The rest is collective, and throws DeadlineError or PeerError.

  // Of one number from each rank; with `count`, weighted by it: each rank gives a mean over so many
  // samples. Every rank gives a count, or none does. NaN if all counts are zero. Throws UsageError,
  // on its rank alone, for a count that is negative or not finite.
  [[nodiscard]] double average(double value, std::string_view label) const;
  [[nodiscard]] double average(double value, double count, std::string_view label) const;
  [[nodiscard]] double sum(double value, std::string_view label) const;
  // Of each metric; with `count` weighted by it. Throws UsageError, on all ranks, if the names
  // differ between them.
  using Metrics = std::map<std::string, double>;
  [[nodiscard]] Metrics average(const Metrics& metrics, std::string_view label = "metrics") const;
  [[nodiscard]] Metrics average(const Metrics& metrics, double count,
                                std::string_view label = "metrics") const;
  // In place, in rank order or not as the engine does it.
  void reduce(std::span<double> values, ReduceOp op, std::string_view label) const;
  // Of a tensor of any strides on each rank, of equal dtype and number of elements, which go
  // together in row-major order: a new tensor of this rank's shape.
  [[nodiscard]] at::Tensor average(const at::Tensor& tensor, std::string_view label) const;
  [[nodiscard]] at::Tensor sum(const at::Tensor& tensor, std::string_view label) const;
  // A text from each rank, by rank.
  [[nodiscard]] std::vector<std::string> gather(std::string_view text,
                                                std::string_view label) const;
  void barrier(std::string_view label) const;

  // This rank has failed for `reason` (a line, and a second one that is the hint), which the others
  // are told where they wait for it: ends every operation of every group of the session, with
  // PeerError. Any thread.
  void abort(const std::string& reason) const;

  // At the end of a job that went well: where rank 0 keeps the store, it stays until all others are
  // done with it. A rank that ends without it costs the others nothing but a message about a store
  // that is gone. Does nothing for a session on a group, or a lone process.
  void leave(Seconds timeout = Seconds(300)) const;

 private:
  struct State;
  explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace troika
