#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/sync/all_reduce_sync.h>

#include <utility>

namespace troika {
namespace {

constexpr const char* kRounds = "compress.rounds";

// On one rank nothing goes over a wire.
AllReduceOptions with_compression_between_ranks(AllReduceOptions options, const Arena& arena) {
  if (options.compress && !options.compress->applies_to(arena.sharding().shard)) {
    options.compress = nullptr;
  }
  return options;
}

}  // namespace

AllReduceSync::AllReduceSync(Arena& arena, AllReduceOptions options)
    : options_(with_compression_between_ranks(std::move(options), arena)),
      arena_(arena),
      axis_(arena, options_.partial, options_.timeout, options_.compress) {}

void AllReduceSync::begin_step(int microbatches, Seconds timeout) {
  options_.timeout = timeout;
  axis_.begin_step(microbatches, timeout);
}

StepReduction AllReduceSync::reduction(const StepPart& own, std::string_view label) const {
  return {options_.all, own, std::string(label), patience(), arena_.device()};
}

void AllReduceSync::reduce(const StepPart& own) {
  if (on_device_) {
    own_ = own;
  } else {
    sums_.emplace(reduction(own, "loss"));
  }
}

Updater AllReduceSync::finish() {
  axis_.finish();
  return Updater::kLocal;
}

StepSums AllReduceSync::sums() {
  check(sums_.has_value(), "a step that ends without a loss");
  StepSums sums = sums_->wait();
  sums_.reset();
  return sums;
}

bool AllReduceSync::sum_on_device(bool wanted) {
  for (const Group& group : options_.all) wanted = group.carries(arena_.device()) && wanted;
  on_device_ = smallest(wanted ? 1 : 0, "where sums are made") == 1;
  return on_device_;
}

DeviceSums AllReduceSync::queue_sums() {
  check(own_.has_value(), "a step that ends without a loss");
  DeviceSums sums = troika::queue_sums(options_.all, *own_, "loss", patience(), arena_.device());
  own_.reset();
  return sums;
}

StepSums AllReduceSync::read_sums(std::span<const double> values) const {
  return sums_of(values, options_.all.front());
}

void AllReduceSync::end_step(bool applied) {
  axis_.end_step(applied);
  if (applied) axis_.after_update();
}

CompressionState AllReduceSync::kept() const {
  return CompressionState("replica", options_.compress->peers(arena_.sharding().shard));
}

// Each data rank has errors of its own; at stage 0 it holds all parameters.
std::vector<CompressedPart> AllReduceSync::compressed_parts() const {
  std::vector<CompressedPart> parts;
  axis_.reducer().for_each_memory(
      [&](std::size_t parameter, const BucketPart& place, BucketMemory& memory, std::size_t i) {
        const ParameterSpec& spec = arena_.parameters()[parameter]->spec();
        CompressedPart& part = parts.emplace_back();
        part.parameter = spec.name;
        part.shard = ShardDescriptor::of(arena_, arena_.local_shards()[parameter]);
        part.shard.owned = spec.tied_replica ? 0 : spec.owned.value_or(spec.local_count());
        if (memory.error.defined()) part.error = memory.error.narrow(0, place.begin, place.count());
        if (i < memory.factors.size()) part.factor = memory.factors[i];
      });
  return parts;
}

void AllReduceSync::save(StateDict& state) const {
  if (!compresses()) return;
  kept().save(state, compressed_parts(), {"errors", Deadline::in(options_.timeout)});
  axis_.reducer().for_each_memory([&](std::size_t, const BucketPart&, BucketMemory& memory,
                                      std::size_t) { state.set(kRounds, memory.rounds); });
}

void AllReduceSync::add_places(StateDict& state, const HasTensor& has) const {
  if (!compresses()) return;
  kept().add_places(state, compressed_parts(), has);
}

void AllReduceSync::load(const StateDict& state) {
  if (!compresses() || !state.numbers().contains(kRounds)) return;
  kept().load(state, compressed_parts());
  axis_.reducer().for_each_memory([&](std::size_t, const BucketPart&, BucketMemory& memory,
                                      std::size_t) { memory.rounds = state.integer(kRounds); });
}

std::int64_t AllReduceSync::smallest(std::int64_t own, std::string_view label) const {
  const at::Tensor shared = at::full({1}, own, at::kLong);
  for (const Group& group : options_.all) {
    group.all_reduce(shared, ReduceOp::kMin, {label, Deadline::in(options_.timeout)}).wait();
  }
  return shared.item<std::int64_t>();
}

StepSums AllReduceSync::sum(const StepPart& own, std::string_view label) const {
  return reduction(own, label).wait();
}

}  // namespace troika
