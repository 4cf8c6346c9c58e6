// Extends LibTorch: for programs that include torch/torch.h. Deals the samples of a data set out to
// the ranks, for torch::data::make_data_loader. Which samples a rank gets is a pure function of
// (seed, epoch, rank, number of ranks): position p of the epoch's order goes to rank p modulo the
// number of ranks.
#pragma once

#include <torch/data/samplers/base.h>
#include <troika/session/session.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troika {

struct DistributedSamplerOptions {
  std::uint64_t seed = 0;  // equal on all ranks
  enum class Order { kShuffled, kAscending } order = Order::kShuffled;
  // When the samples do not divide by the ranks: the first ones come twice, so that every rank has
  // as many; the last ones are left out; or some ranks have one sample less, and every sample comes
  // exactly once (train such epochs with Replica::join()).
  enum class Tail { kPad, kDrop, kUneven } tail = Tail::kPad;
};

// The first epoch is number 0; each later pass over the data loader is the next one. A small value:
// copies share their place, so that set_epoch() also reaches the copy in a data loader.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(std::size_t size, const Session& session,
                     DistributedSamplerOptions options = {});
  // For rank `rank` of `ranks`. Throws UsageError unless size >= 1 and 0 <= rank < ranks.
  DistributedSampler(std::size_t size, int rank, int ranks, DistributedSamplerOptions options = {});

  // The next pass is over this epoch.
  void set_epoch(std::uint64_t epoch);
  // Of the pass under way, or of the next one before the first.
  [[nodiscard]] std::uint64_t epoch() const;
  // Samples of this rank in each epoch.
  [[nodiscard]] std::size_t samples() const;

  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // Up to `batch_size` indices; nothing when the epoch is over.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // Epoch and place in it, so that a loaded sampler goes on where the saved one was.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troika
