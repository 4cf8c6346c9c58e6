#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/data/sampler.h>
#include <troika/parallel/data_parallel/distributed_sampler.h>

#include <torch/torch.h>

#include <utility>

namespace troika {

using Options = DistributedSamplerOptions;

struct DistributedSampler::State {
  std::size_t size = 0;
  std::size_t rank = 0, ranks = 1;
  Options options;
  std::uint64_t epoch = 0;
  std::size_t taken = 0;  // by this rank, in this epoch
  bool begun = false;     // the epoch has been asked for
  bool restored = false;  // the next reset() goes on where load() has set it

  // Of this rank in each epoch.
  [[nodiscard]] std::size_t samples() const {
    const std::size_t whole = size / ranks, rest = size % ranks;
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
  state_->taken = 0;
  state_->begun = false;
  state_->restored = false;
}

std::uint64_t DistributedSampler::epoch() const {
  return state_->epoch;
}

std::size_t DistributedSampler::samples() const {
  return state_->samples();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size) state_->size = *new_size;
  if (std::exchange(state_->restored, false)) return;
  // A data loader resets its sampler when it is made, and when each pass begins: only what has been
  // taken from ends an epoch.
  if (std::exchange(state_->begun, false)) ++state_->epoch;
  state_->taken = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  state_->begun = true;
  const std::size_t end = std::min(state_->samples(), state_->taken + batch_size);
  if (state_->taken >= end) return std::nullopt;
  std::vector<std::size_t> indices;
  for (; state_->taken < end; ++state_->taken) {
    indices.push_back(state_->at(state_->taken * state_->ranks + state_->rank));
  }
  return indices;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(static_cast<std::int64_t>(state_->epoch)), true);
  archive.write("taken", torch::tensor(static_cast<std::int64_t>(state_->taken)), true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, taken;
  archive.read("epoch", epoch, true);
  archive.read("taken", taken, true);
  state_->epoch = static_cast<std::uint64_t>(epoch.item<std::int64_t>());
  state_->taken = static_cast<std::size_t>(taken.item<std::int64_t>());
  state_->begun = true;
  state_->restored = true;
}

}  // namespace troika
