#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/optim/square_sum.h>
#include <troika/server/server_shard.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

std::vector<ParameterSpec> specs_of(std::span<const ShardSegment> segments) {
  std::vector<ParameterSpec> specs;
  for (const ShardSegment& segment : segments) {
    ParameterSpec spec;
    spec.name = segment.name;
    spec.shape = {segment.count};
    spec.decays = segment.decays;
    spec.lr_factor = segment.lr_factor;
    spec.weight_decay = segment.weight_decay;
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

double squares_of(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble
             ? square_sum(values.const_data_ptr<double>(), values.numel())
             : square_sum(values.const_data_ptr<float>(), values.numel());
}

IndexRange shard_range(std::int64_t size, int shard, int shards) {
  return even_split(size, shard, shards);
}

std::vector<ShardSegment> shard_segments(Arena& arena, IndexRange range, bool alike) {
  std::vector<ShardSegment> segments;
  FlatMasters(arena).for_each_shard([&](const LocalShard& shard, std::int64_t begin) {
    const std::int64_t first = std::max(begin, range.first),
                       last = std::min(begin + shard.count, range.end());
    if (first >= last) return;
    const ParameterSpec& spec = arena.parameters()[shard.parameter]->spec();
    ShardSegment segment{spec.name, last - first, spec.decays, spec.lr_factor, spec.weight_decay};
    if (alike) segment = {spec.name, last - first, false, 1, {}};
    segments.push_back(std::move(segment));
  });
  return segments;
}

ServerShard::ServerShard(const OptimizerOptions& optimizer, std::span<const ShardSegment> segments,
                         at::ScalarType type, bool has_whole) {
  if (!has_whole && optimizer.kind.kind().uses_layer_norms()) {
    throw UsageError(std::string(optimizer.kind.name()) +
                         " goes by the norms of whole parameters, which several servers cut",
                     "write servers = 1");
  }
  arena_ = std::make_unique<Arena>(specs_of(segments), NumericTypes{type, type}, Group());
  masters_ = std::make_unique<FlatMasters>(*arena_);
  optimizer_ = make_optimizer(optimizer, *arena_);
  states_ = std::ssize(optimizer.kind.kind().state_names(optimizer.kind.options()));
}

// The state of each kind in turn, end to end as the values are.
template <class Visit>
void ServerShard::for_each_state(const at::Tensor& values, const Visit& visit) const {
  const std::vector<NamedState> all = optimizer_->state();
  std::size_t shard = 0;
  masters_->for_each_shard([&](const LocalShard& local, std::int64_t begin) {
    for (std::int64_t k = 0; k < states_; ++k) {
      const std::size_t index =
          shard * static_cast<std::size_t>(states_) + static_cast<std::size_t>(k);
      visit(all[index].tensor.view({-1}), values.narrow(0, (1 + k) * size() + begin, local.count));
    }
    ++shard;
  });
}

void ServerShard::read(const at::Tensor& values) const {
  masters_->read({0, size()}, values);
}

void ServerShard::read_all(const at::Tensor& values) const {
  read(values.narrow(0, 0, size()));
  for_each_state(values, [](const at::Tensor& state, const at::Tensor& out) { out.copy_(state); });
}

void ServerShard::write_all(const at::Tensor& values, std::int64_t version, double round) {
  check(values.numel() == (1 + states_) * size(), "values of another model");
  masters_->write({0, size()}, values.narrow(0, 0, size()));
  for_each_state(values, [](const at::Tensor& state, const at::Tensor& in) { state.copy_(in); });
  arena_->publish();
  version_ = version;
  round_ = round;
}

void ServerShard::check_gradient(const at::Tensor& gradient) const {
  if (gradient.numel() == size() && gradient.scalar_type() == type()) return;
  throw DataError("a worker has pushed " + std::to_string(gradient.numel()) +
                      " values of a gradient, and this server has " + std::to_string(size()) +
                      " parameters",
                  "all processes of a job take the same recipe");
}

void ServerShard::check_not_fenced(int worker) const {
  if (!applied_.fenced.contains(worker)) return;
  throw RendezvousError("worker " + std::to_string(worker) +
                        " is none of the job any more: it was silent for longer than its lease");
}

RowTable& ServerShard::table(const RowTableSpec& spec) {
  const auto [found, is_new] = tables_.try_emplace(spec.name, spec, type());
  if (found->second.spec() != spec) {
    throw DataError("the table '" + spec.name + "' has other options on the servers",
                    "give it the same ones on all workers, and in a run that goes on");
  }
  return found->second;
}

void ServerShard::update(const at::Tensor& gradient, std::span<const RowGradients> rows,
                         double learning_rate, double scale, RoundShare round) {
  arena_->release_gradients();
  masters_->write_gradients({0, size()}, gradient);
  for (const auto& parameter : arena_->parameters()) static_cast<void>(parameter->claim());
  StepInput input;
  input.learning_rate = learning_rate;
  input.gradient_scale = scale;
  input.step = ++version_;
  input.round = round;
  optimizer_->step(input);
  for (const RowGradients& each : rows) {
    table(each.spec).update(each, learning_rate, scale, version_);
  }
}

// Shares are counted rather than pushes: those of a round that began with more workers than are
// there now, or with fewer, weigh what they weighed when they were applied.
RoundShare ServerShard::add_to_round(std::int64_t workers) {
  constexpr double kRounding = 1e-9;  // N times 1 / N may be a little below 1
  RoundShare round;
  round.share = 1 / static_cast<double>(workers);
  round_ += round.share;
  round.ends_round = round_ > 1 - kRounding;
  if (round.ends_round) round_ = 0;
  return round;
}

ServerShard::Pushed ServerShard::push(const PushedUpdate& update, const at::Tensor& gradient,
                                      std::span<const RowGradients> rows) {
  check_not_fenced(update.worker);
  check_gradient(gradient);
  LastPush& last = applied_.pushes[update.worker];
  // A worker whose answer was lost pushes again: each turn counts once.
  if (update.turn <= last.turn) return {version_, last.staleness, true};
  Pushed pushed;
  // A server that has come back from a file may be behind what a worker has seen.
  pushed.staleness = std::max<std::int64_t>(0, version_ - update.version);
  double rate = update.learning_rate;
  if (update.divided_by_staleness && pushed.staleness > 1) {
    rate /= static_cast<double>(pushed.staleness);
  }
  this->update(gradient, rows, rate, update.scale, add_to_round(update.workers));
  // Noted after the update, under the same lock: a push that throws is not taken for one that was
  // applied.
  last = {update.turn, pushed.staleness, update.report};
  pushed.version = version_;
  return pushed;
}

void ServerShard::drop_stored() {
  for (auto& [worker, gradient] : stored_) spare_.push_back(std::move(gradient));
  stored_.clear();
  stored_rows_.clear();
}

void ServerShard::store(int worker, std::int64_t step, const at::Tensor& gradient,
                        std::span<const RowGradients> rows) {
  check_not_fenced(worker);
  check_gradient(gradient);
  if (step <= applied_.step) return;  // repeated
  if (step != step_) drop_stored();
  step_ = step;
  at::Tensor& kept = stored_[worker];
  if (!kept.defined() && !spare_.empty()) {
    kept = std::move(spare_.back());
    spare_.pop_back();
  }
  if (!kept.defined()) kept = at::empty_like(gradient);
  kept.copy_(gradient);
  stored_rows_[worker].assign(rows.begin(), rows.end());
}

ServerShard::Sum ServerShard::sum(std::int64_t step, std::span<const int> workers) {
  Sum sum;
  if (step == applied_.step) {  // another server has died before it has applied it, too
    sum.squares = applied_.squares;
    return sum;
  }
  for (const int worker : workers) {
    if (step != step_ || !stored_.contains(worker)) sum.missing.push_back(worker);
  }
  if (!sum.missing.empty() || workers.empty()) return sum;
  if (!sum_.defined()) sum_ = at::empty_like(stored_.at(workers.front()));
  // In the order of the list, which the coordinator makes: the same bits on every run, whichever
  // worker pushes first.
  sum_.copy_(stored_.at(workers.front()));
  for (const int worker : workers.subspan(1)) sum_.add_(stored_.at(worker));
  std::map<std::string, std::vector<RowGradients>> by_table;
  for (const int worker : workers) {
    for (const RowGradients& each : stored_rows_[worker]) by_table[each.spec.name].push_back(each);
  }
  row_sums_.clear();
  squares_ = squares_of(sum_);
  for (const auto& [name, pushed] : by_table) {
    row_sums_.push_back(sum_of_rows(pushed));
    squares_ += squares_of(row_sums_.back().values);
  }
  summed_step_ = step;
  sum.squares = squares_;
  return sum;
}

std::optional<std::int64_t> ServerShard::apply(std::int64_t step, double learning_rate,
                                               double scale) {
  if (step <= applied_.step) return version_;  // repeated
  if (step != summed_step_) return std::nullopt;
  update(sum_, row_sums_, learning_rate, scale);
  // Noted with the squares: where another server dies before it has applied the step, the
  // coordinator asks again and gets the same norm.
  applied_.step = step;
  applied_.squares = squares_;
  drop_stored();
  return version_;
}

ServerShard::LastPush ServerShard::fence(int worker) {
  applied_.fenced.insert(worker);
  const auto last = applied_.pushes.find(worker);
  return last == applied_.pushes.end() ? LastPush() : last->second;
}

}  // namespace troika
