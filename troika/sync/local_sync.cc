#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/local_sync.h>

#include <array>
#include <map>
#include <utility>

namespace troika {
namespace {

constexpr const char* kPending = "sync.pending";  // the fragment on its way; -1: none
constexpr const char* kApart = "sync.apart";      // 1 once islands go their own ways
constexpr std::string_view kAnchor = "sync.anchor.", kMomentum = "sync.momentum.";

std::string rounds_name(std::int64_t fragment) {
  return "compress.rounds." + std::to_string(fragment);
}

bool is_nesterov(const LocalOptions& options) {
  return options.outer == Outer::kNesterov;
}

}  // namespace

template <>
std::span<const std::string_view> names_of<Outer>() {
  static constexpr std::array<std::string_view, 2> kNames = {"average", "nesterov"};
  return kNames;
}

OuterStep outer_step_of(const LocalOptions& options) {
  return is_nesterov(options) ? OuterStep{options.outer_lr, options.outer_momentum} : OuterStep{};
}

LocalSync::LocalSync(Arena& arena, LocalOptions options, SyncGroups groups)
    : LooseSync("local", arena, std::move(groups)),
      options_(options),
      anchor_(masters().empty(masters().size())) {
  if (is_nesterov(options_)) momentum_ = at::zeros_like(anchor_);
  if (this->groups().compress) errors_ = at::zeros_like(anchor_);
  take_anchor();
}

void LocalSync::take_anchor() {
  masters().read({0, masters().size()}, anchor_);
}

std::int64_t LocalSync::step_in_round() const {
  return (step() + 1 - options_.start_after) % options_.every_steps;
}

// They take turns, evenly over a round; the last of them when all meet.
std::optional<std::int64_t> LocalSync::fragment_due() const {
  for (std::int64_t i = 0; i < options_.fragments; ++i) {
    const std::int64_t place = (i + 1) * options_.every_steps / options_.fragments;
    if (place % options_.every_steps == step_in_round()) return i;
  }
  return std::nullopt;
}

bool LocalSync::are_replicas_equal() const {
  const std::int64_t apart = step() - options_.start_after;
  return apart <= 0 || (options_.fragments == 1 && apart % options_.every_steps == 0);
}

Updater LocalSync::finish() {
  const Updater updater = LooseSync::finish();
  if (is_together()) sum_gradients();
  return updater;
}

// Those of the islands, where they still act as one.
void LocalSync::sum_gradients() const {
  const IndexRange all{0, masters().size()}, own = masters().own_part(all);
  const at::Tensor gradients = masters().empty(all.count);
  masters().read_gradients(all, gradients);
  groups()
      .islands
      .all_reduce(gradients.narrow(0, own.first, own.count), ReduceOp::kSum, call("gradients"))
      .wait();
  masters().gather(all, gradients, call("gradients"));
  masters().write_gradients(all, gradients);
}

IndexRange LocalSync::range_of(std::int64_t fragment) const {
  return even_split(masters().size(), fragment, options_.fragments);
}

LocalSync::Exchange LocalSync::begin_exchange(std::int64_t fragment) const {
  Exchange exchange;
  exchange.fragment = fragment;
  exchange.range = range_of(fragment);
  exchange.sent = masters().empty(exchange.range.count);
  masters().read(exchange.range, exchange.sent);
  const IndexRange own = masters().own_part(exchange.range);
  exchange.change = masters().empty(own.count + 1);
  at::Tensor change = exchange.change.narrow(0, 0, own.count);
  at::sub_out(change, anchor_.narrow(0, own.first, own.count),
              exchange.sent.narrow(0, own.first - exchange.range.first, own.count));
  change.mul_(sent_weight());
  exchange.change.narrow(0, own.count, 1).fill_(sent_weight());
  if (groups().compress) {
    exchange.weight = groups().islands.all_reduce(exchange.change.narrow(0, own.count, 1),
                                                  ReduceOp::kAverage, call("weights"));
    exchange.parts = masters().parts_of(own);
    exchange.work = groups().compress->start(bucket_of(exchange));
    return exchange;
  }
  exchange.work = groups().islands.all_reduce(exchange.change, ReduceOp::kSum, call("islands"));
  return exchange;
}

GradientBucket LocalSync::bucket_of(const Exchange& exchange) const {
  const std::int64_t count = exchange.change.numel() - 1;
  return {static_cast<int>(exchange.fragment), exchange.change.narrow(0, 0, count),
          &groups().islands, call("islands"), exchange.parts};
}

at::Tensor LocalSync::mean_of(const Exchange& exchange) const {
  exchange.work.wait();
  if (groups().compress) {
    exchange.weight.wait();
    groups().compress->finish(bucket_of(exchange));
    groups().compress->end_step(/*applied=*/true);
  }
  const IndexRange own = masters().own_part(exchange.range);
  at::Tensor mean = masters().empty(exchange.range.count);
  const at::Tensor weight = exchange.change.narrow(0, own.count, 1);
  // Where no island has trained on anything, nothing has changed.
  mean.narrow(0, own.first - exchange.range.first, own.count)
      .copy_(exchange.change.narrow(0, 0, own.count))
      .div_(at::where(weight > 0, weight, at::ones_like(weight)));
  masters().gather(exchange.range, mean, call("islands"));
  return mean;
}

void LocalSync::finish_exchange() {
  const Exchange exchange = *std::exchange(exchange_, std::nullopt);
  fragment_.reset();
  const IndexRange range = exchange.range;
  const auto part = [&](const at::Tensor& flat) {
    return flat.defined() ? flat.narrow(0, range.first, range.count) : flat;
  };
  const at::Tensor anchor = part(anchor_);
  take_outer_step(outer_step_of(options_), anchor, part(momentum_), mean_of(exchange));
  if (options_.fragments == 1) {
    masters().write(range, anchor);
    return;
  }
  const at::Tensor values = masters().empty(range.count);
  masters().read(range, values);
  // The steps taken while the fragment was on its way are kept: only the difference to what was
  // sent is added.
  masters().write(range, values.add_(anchor).sub_(exchange.sent));
}

bool LocalSync::exchange() {
  has_anchor_ = true;
  bool has_met = false;
  const auto finish = [&] {
    finish_exchange();
    has_met = true;
  };
  if (exchange_) finish();
  if (const auto due = fragment_due()) {
    fragment_ = due;
    // Fixed with the values that are sent: samples of the steps in between count in the next round.
    sent_weight() = weight();
    exchange_ = begin_exchange(*due);
    if (options_.fragments == 1) finish();
  }
  // After the exchange, which sends this weight.
  if (step_in_round() == 0) weight() = 0;
  return has_met;
}

void LocalSync::end_step(bool applied) {
  const bool was_together = is_together();
  LooseSync::end_step(applied);
  // Here and not at the first exchange: changes are counted from the last values that all islands
  // had in common.
  if (was_together && !is_together()) take_anchor();
}

// Until islands go their own ways, the anchor is what is in the masters. What was on its way when a
// state was saved is sent again: no step had been taken since.
void LocalSync::refresh() {
  if (!has_anchor_) take_anchor();
  if (fragment_ && !exchange_) exchange_ = begin_exchange(*fragment_);
  LooseSync::refresh();
}

void LocalSync::add_tensors(StateDict& state, std::string_view prefix,
                            const at::Tensor& flat) const {
  masters().for_each_shard([&](const LocalShard& shard, std::int64_t begin) {
    ShardDescriptor part = ShardDescriptor::of(arena(), shard);
    if (groups().islands.rank() > 0) part.owned = 0;
    state.add(std::string(prefix) + arena().parameters()[shard.parameter]->spec().name, part,
              flat.narrow(0, begin, shard.count));
  });
}

template <class Visit>
void LocalSync::for_each_memory(const Visit& visit) const {
  for (std::int64_t fragment = 0; fragment < options_.fragments; ++fragment) {
    Exchange exchange;
    exchange.fragment = fragment;
    exchange.range = range_of(fragment);
    const IndexRange own = masters().own_part(exchange.range);
    exchange.change = anchor_.new_empty({own.count + 1});
    exchange.parts = masters().parts_of(own);
    if (own.count == 0) continue;
    if (BucketMemory* const memory = groups().compress->memory(bucket_of(exchange))) {
      visit(fragment, own, exchange.parts, *memory);
    }
  }
}

std::vector<CompressedPart> LocalSync::compressed_parts() const {
  std::map<std::string, at::Tensor> factors;
  bool has_errors = false;
  for_each_memory([&](std::int64_t, IndexRange own, std::span<const BucketPart> parts,
                      const BucketMemory& memory) {
    has_errors = has_errors || memory.error.defined();
    for (std::size_t i = 0; i < memory.factors.size(); ++i) {
      if (!memory.factors[i].defined()) continue;
      factors[masters().parameter_at(own.first + parts[i].begin)] = memory.factors[i];
    }
  });
  std::vector<CompressedPart> parts;
  masters().for_each_shard([&](const LocalShard& shard, std::int64_t begin) {
    CompressedPart& part = parts.emplace_back();
    part.parameter = arena().parameters()[shard.parameter]->spec().name;
    part.shard = ShardDescriptor::of(arena(), shard);
    if (has_errors) part.error = errors_.narrow(0, begin, shard.count);
    if (const auto found = factors.find(part.parameter); found != factors.end()) {
      part.factor = found->second;
    }
  });
  return parts;
}

// Where something is on its way, what is saved is what was kept before: it is sent again.
void LocalSync::save_compression(StateDict& state) const {
  for_each_memory([&](std::int64_t fragment, IndexRange own, std::span<const BucketPart>,
                      const BucketMemory& memory) {
    if (memory.error.defined()) errors_.narrow(0, own.first, own.count).copy_(memory.error);
    state.set(rounds_name(fragment), memory.rounds);
  });
  for (std::int64_t fragment = 0; fragment < options_.fragments; ++fragment) {
    const IndexRange range = range_of(fragment);
    masters().gather(range, errors_.narrow(0, range.first, range.count), call("errors"));
  }
  CompressionState("island", groups().islands).save(state, compressed_parts(), call("errors"));
}

void LocalSync::load_compression(const StateDict& state) const {
  CompressionState("island", groups().islands).load(state, compressed_parts());
  for_each_memory([&](std::int64_t fragment, IndexRange own, std::span<const BucketPart>,
                      BucketMemory& memory) {
    if (memory.error.defined()) memory.error.copy_(errors_.narrow(0, own.first, own.count));
    if (state.numbers().contains(rounds_name(fragment))) {
      memory.rounds = state.integer(rounds_name(fragment));
    }
  });
}

void LocalSync::save(StateDict& state) const {
  LooseSync::save(state);
  state.set(kPending, fragment_.value_or(-1));
  state.set(kApart, std::int64_t{is_together() ? 0 : 1});
  add_tensors(state, kAnchor, anchor_);
  if (momentum_.defined()) add_tensors(state, kMomentum, momentum_);
  if (groups().compress) save_compression(state);
}

void LocalSync::add_places(StateDict& state, const HasTensor& has) const {
  LooseSync::add_places(state, has);
  if (groups().compress) {
    CompressionState("island", groups().islands).add_places(state, compressed_parts(), has);
  }
  masters().for_each_shard([&](const LocalShard& shard, std::int64_t begin) {
    const std::string& name = arena().parameters()[shard.parameter]->spec().name;
    const auto add = [&](std::string_view prefix, const at::Tensor& flat) {
      if (!flat.defined() || !has(std::string(prefix) + name)) return;
      state.add(std::string(prefix) + name, ShardDescriptor::of(arena(), shard),
                flat.narrow(0, begin, shard.count));
    };
    add(kAnchor, anchor_);
    add(kMomentum, momentum_);
  });
}

void LocalSync::load(const StateDict& state) {
  LooseSync::load(state);
  if (groups().compress) load_compression(state);
  exchange_.reset();
  fragment_.reset();
  has_anchor_ = state.numbers().contains(kApart) && state.integer(kApart) == 1;
  if (!has_anchor_) return;
  if (is_together()) {
    throw UsageError("sync.start_after = " + std::to_string(options_.start_after) +
                         ": the islands of this run went their own ways before step " +
                         std::to_string(step() + 1),
                     "leave sync.start_after as it was");
  }
  // What was on its way between other islands stays in the replicas, and goes with the next round.
  const std::int64_t pending = state.integer(kPending);
  if (pending >= 0 && pending < options_.fragments && is_of_same_islands(state)) {
    fragment_ = pending;
  }
}

namespace {

class LocalKind final : public Declared<SyncKind, LocalOptions> {
 public:
  using K = KeysOf<LocalOptions>;
  LocalKind()
      : Declared(
            "local",
            {K::integer<&LocalOptions::every_steps>(
                 "every_steps", ranges::kPositive,
                 "islands exchange their parameters after so many steps of their own"),
             K::choice<&LocalOptions::outer>(
                 "outer",
                 "what makes the next parameters of the islands': their mean, or a step of SGD "
                 "with Nesterov's momentum towards it (DiLoCo)"),
             K::number<&LocalOptions::outer_lr>("outer_lr", ranges::kAboveZero,
                                                "learning rate of outer = \"nesterov\""),
             K::number<&LocalOptions::outer_momentum>("outer_momentum", ranges::kBelowOne,
                                                      "momentum of outer = \"nesterov\""),
             K::integer<&LocalOptions::fragments>(
                 "fragments", ranges::kPositive,
                 "so many parts of the parameters take turns, each on its way during the step "
                 "after; 1: all at once, waited for"),
             K::integer<&LocalOptions::start_after>("start_after", ranges::kCountOrOff,
                                                    "so many steps of all_reduce come first"),
             K::integer<&LocalOptions::island>("island", ranges::kCountOrOff,
                                               "ranks of an island; 0: those of a host")}) {}

  void check(const Options& options, const Origins& origins) const override {
    const auto& own = options.as<LocalOptions>();
    if (own.fragments <= own.every_steps) return;
    origins.fail({"sync.fragments", "sync.every_steps"},
                 "fragments = " + std::to_string(own.fragments) + " do not all get a turn in " +
                     std::to_string(own.every_steps) + " steps",
                 "write fragments = " + std::to_string(own.every_steps) + " or fewer");
  }
  [[nodiscard]] std::int64_t island(const Options& options,
                                    std::int64_t host_ranks) const override {
    const std::int64_t asked = options.as<LocalOptions>().island;
    return asked > 0 ? asked : host_ranks;
  }
  // The anchor, the momentum, and what is on its way.
  [[nodiscard]] std::int64_t copies(const Options& options) const override {
    const auto& own = options.as<LocalOptions>();
    return 1 + (is_nesterov(own) ? 1 : 0) + (own.fragments > 1 ? 1 : 0);
  }
  [[nodiscard]] Compresses compresses() const override { return Compresses::kChanges; }
  [[nodiscard]] std::unique_ptr<ReplicaSync> make(const Options& options, Arena& arena,
                                                  const SyncGroups& groups) const override {
    SyncGroups used = groups;
    // On one rank, nothing goes over a wire.
    if (used.compress && !used.compress->applies_to(used.islands)) used.compress = nullptr;
    if (used.compress && used.compress->peers(used.islands).size() < used.islands.size()) {
      throw UsageError(
          "compress.only = \"between_hosts\" with sync.kind = \"local\": some islands share a "
          "host, and what they exchange there is not told apart",
          "write sync.island = 0 on hosts that are alike, or compress.only = \"everywhere\"");
    }
    return std::make_unique<LocalSync>(arena, options.as<LocalOptions>(), std::move(used));
  }
};

}  // namespace

const SyncKind& local_kind() {
  static const LocalKind kKind;
  return kKind;
}

}  // namespace troika
