#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/data/sampler.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace troika {

using Options = DistributedSamplerOptions;

struct DistributedSampler::State {
  std::size_t size = 0;
  std::size_t rank = 0, ranks = 1;
  Options options;
  std::uint64_t epoch = 0;
  std::size_t first = 0;  // position of the epoch from which on it is dealt out
  std::size_t taken = 0;  // by this rank, in this epoch, from there on
  bool begun = false;     // the epoch has been asked for
  bool restored = false;  // reset() keeps the place until a sample is asked for

  // Of this rank in an epoch of which `from` samples are gone.
  [[nodiscard]] std::size_t samples(std::size_t from) const {
    const std::size_t left = size - std::min(from, size);
    const std::size_t whole = left / ranks, rest = left % ranks;
    switch (options.tail) {
      case Options::Tail::kPad:
        return whole + (rest > 0 ? 1 : 0);
      case Options::Tail::kDrop:
        return whole;
      case Options::Tail::kUneven:
        return whole + (rank < rest ? 1 : 0);
    }
    return whole;
  }

  [[nodiscard]] std::size_t at(std::size_t position) const {
    position %= size;  // the padding
    if (options.order == Options::Order::kAscending) return position;
    const Permutation permutation(stream_key(options.seed, "distributed sampler"),
                                  static_cast<std::int64_t>(size));
    return static_cast<std::size_t>(
        permutation.at(static_cast<std::int64_t>(epoch), static_cast<std::int64_t>(position)));
  }
};

DistributedSampler::DistributedSampler(std::size_t size, const Session& session, Options options)
    : DistributedSampler(size, session.rank(), session.size(), options) {}

DistributedSampler::DistributedSampler(std::size_t size, int rank, int ranks, Options options)
    : state_(std::make_shared<State>()) {
  if (size == 0 || ranks < 1 || rank < 0 || rank >= ranks) {
    throw UsageError("a sampler of " + std::to_string(size) + " samples for rank " +
                         std::to_string(rank) + " of " + std::to_string(ranks),
                     "give the data set's size, at least 1, and a rank of the session");
  }
  state_->size = size;
  state_->rank = static_cast<std::size_t>(rank);
  state_->ranks = static_cast<std::size_t>(ranks);
  state_->options = options;
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  state_->epoch = epoch;
  state_->first = state_->taken = 0;
  state_->begun = false;
  state_->restored = false;
}

std::uint64_t DistributedSampler::epoch() const {
  return state_->epoch;
}

std::size_t DistributedSampler::samples() const {
  return state_->samples(0);
}

DistributedSampler::Position DistributedSampler::position() const {
  return {state_->epoch, state_->first + state_->taken * state_->ranks};
}

void DistributedSampler::go_to(const Position& position) {
  state_->epoch = position.epoch;
  state_->first = position.taken;
  state_->taken = 0;
  state_->begun = true;
  state_->restored = true;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->size = *new_size;
  if (state_->restored) return;
  // A data loader resets its sampler when it is made, and when each pass begins: only what has been
  // taken from ends an epoch.
  if (std::exchange(state_->begun, false)) ++state_->epoch;
  state_->first = state_->taken = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  state_->begun = true;
  state_->restored = false;
  const std::size_t end = std::min(state_->samples(state_->first), state_->taken + batch_size);
  if (state_->taken >= end) return std::nullopt;
  std::vector<std::size_t> indices;
  for (; state_->taken < end; ++state_->taken) {
    indices.push_back(state_->at(state_->first + state_->taken * state_->ranks + state_->rank));
  }
  return indices;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(static_cast<std::int64_t>(state_->epoch)), true);
  archive.write("first", torch::tensor(static_cast<std::int64_t>(state_->first)), true);
  archive.write("taken", torch::tensor(static_cast<std::int64_t>(state_->taken)), true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, taken, first;
  archive.read("epoch", epoch, true);
  archive.read("taken", taken, true);
  state_->epoch = static_cast<std::uint64_t>(epoch.item<std::int64_t>());
  const bool has_first = archive.try_read("first", first, true);
  state_->first = has_first ? static_cast<std::size_t>(first.item<std::int64_t>()) : 0;
  state_->taken = static_cast<std::size_t>(taken.item<std::int64_t>());
  state_->begun = true;
  state_->restored = true;
}

}  // namespace troika
