// The parameters that one server keeps, and their optimiser: a state machine without threads or
// connections, so that a simulation can drive the same code. Calls must not overlap.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/optim/options.h>
#include <troika/param/arena.h>
#include <troika/server/row_table.h>
#include <troika/sync/flat_masters.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troika {

// A part of a parameter, in the order in which a shard holds them end to end.
struct ShardSegment {
  std::string name;
  std::int64_t count = 0;
  bool decays = true;
  double lr_factor = 1;
  std::optional<double> weight_decay = {};
};

// Returns the range of a flat model of `size` elements that server `shard` of `shards` keeps, and
// the segments in it of an arena that this rank holds whole.
[[nodiscard]] IndexRange shard_range(std::int64_t size, int shard, int shards);
// `alike`: whatever rates and decay they have.
[[nodiscard]] std::vector<ShardSegment> shard_segments(Arena& arena, IndexRange range,
                                                       bool alike = false);

// Returns the sum of the squares of fp32 or fp64 values of the host, which lie end to end.
[[nodiscard]] double squares_of(const at::Tensor& values);

// An update that a worker has pushed.
struct PushedUpdate {
  int worker = 0;
  std::int64_t turn = 0;     // of the worker, from 1
  std::int64_t version = 0;  // of the parameters that its gradient is of
  double learning_rate = 0;
  double scale = 1;                   // multiplies its gradient
  bool divided_by_staleness = false;  // its rate (Zhang et al. 2015)
  std::string report = {};            // stored for Coordinator::resolve_lost()
  std::int64_t workers = 1;           // that were there when its samples were dealt out
};

class ServerShard {
 public:
  // Throws UsageError where the optimiser needs whole parameters and `has_whole` is false.
  ServerShard(const OptimizerOptions& optimizer, std::span<const ShardSegment> segments,
              at::ScalarType type, bool has_whole);

  // Returns the number of elements, and of values of state for each.
  [[nodiscard]] std::int64_t size() const { return masters_->size(); }
  [[nodiscard]] std::int64_t states() const { return states_; }
  [[nodiscard]] at::ScalarType type() const { return arena_->types().master; }
  // Returns the updates that have been applied.
  [[nodiscard]] std::int64_t version() const { return version_; }
  // Returns how much of a round has been pushed since the last one ended, from 0 up to but not 1.
  [[nodiscard]] double round() const { return round_; }

  // Read and write values [size()], or values and state [(1 + states()) size()].
  void read(const at::Tensor& values) const;
  void read_all(const at::Tensor& values) const;
  void write_all(const at::Tensor& values, std::int64_t version, double round = 0);

  // Applies an update, once: one that this worker has pushed before changes nothing. `gradient` is
  // [size()]. Throws DataError where it has another size or type, and RendezvousError where the
  // worker is fenced off. `rows`: of tables, updated together with the parameters.
  //
  // To an optimiser that waits for rounds, the push is 1 / update.workers of one. A round ends with
  // the push that makes it whole: after N of N workers, and sooner or later where some join or
  // leave in between.
  struct Pushed {
    std::int64_t version = 0;    // after it
    std::int64_t staleness = 0;  // updates between its version and this one
    bool repeated = false;
  };
  Pushed push(const PushedUpdate& update, const at::Tensor& gradient,
              std::span<const RowGradients> rows = {});

  // Synchronous: store a worker's gradient for a step; add up those of `workers`, in that order,
  // unless some are missing; and apply the sum, once. Gradients of other workers are dropped. Of a
  // step that is applied none is missing. apply() returns nullopt where there is no sum of the
  // step: this server has died since.
  void store(int worker, std::int64_t step, const at::Tensor& gradient,
             std::span<const RowGradients> rows = {});
  struct Sum {
    std::vector<int> missing;
    double squares = 0;  // of the sum, rows included
  };
  Sum sum(std::int64_t step, std::span<const int> workers);
  std::optional<std::int64_t> apply(std::int64_t step, double learning_rate, double scale);

  // Returns the table of this name, which is made when it is first asked for. Throws DataError
  // where there is one with other options.
  [[nodiscard]] RowTable& table(const RowTableSpec& spec);
  [[nodiscard]] const std::map<std::string, RowTable>& tables() const { return tables_; }

  // Holds the last update of a worker that was applied; turn 0: none.
  struct LastPush {
    std::int64_t turn = 0, staleness = 0;
    std::string report = {};
  };
  // Refuses all that a worker pushes from now on.
  LastPush fence(int worker);

  // Holds what has been applied, and who is refused, for a file beside the values.
  struct Applied {
    std::map<int, LastPush> pushes = {};  // by worker
    std::set<int> fenced = {};
    std::int64_t step = 0;
    double squares = 0;  // of that step's sum
  };
  [[nodiscard]] const Applied& applied() const { return applied_; }
  void set_applied(Applied applied) { applied_ = std::move(applied); }

 private:
  void check_gradient(const at::Tensor& gradient) const;
  void check_not_fenced(int worker) const;
  void drop_stored();
  void update(const at::Tensor& gradient, std::span<const RowGradients> rows, double learning_rate,
              double scale, RoundShare round = {});
  // Counts a push, one of `workers` in a round.
  [[nodiscard]] RoundShare add_to_round(std::int64_t workers);
  template <class Visit>
  void for_each_state(const at::Tensor& values, const Visit& visit) const;

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<FlatMasters> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::int64_t states_ = 0;
  std::int64_t version_ = 0;
  double round_ = 0;
  Applied applied_;
  std::int64_t step_ = 0;  // of kept_
  std::map<int, at::Tensor> stored_;
  std::map<int, std::vector<RowGradients>> stored_rows_;
  // Memory for later gradients: pages that are new take longer than what is written to them.
  std::vector<at::Tensor> spare_;
  at::Tensor sum_;
  std::vector<RowGradients> row_sums_;
  std::int64_t summed_step_ = 0;
  double squares_ = 0;  // of both
  std::map<std::string, RowTable> tables_;
};

}  // namespace troika
