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
  // The treatment of samples that do not divide by the ranks. kPad repeats the first ones, so that
  // every rank has as many. kDrop leaves the last ones out. kUneven gives some ranks one sample
  // less, and every sample comes exactly once (train such epochs with Replica::join()).
  enum class Tail { kPad, kDrop, kUneven } tail = Tail::kPad;
};

// Samples the slice of one rank. The first epoch is number 0; each later pass over the data loader
// is the next one. A small value: copies share their place, so that set_epoch() also reaches the
// copy in a data loader.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(std::size_t size, const Session& session,
                     DistributedSamplerOptions options = {});
  // Samples for rank `rank` of `ranks`. Throws UsageError unless size >= 1 and 0 <= rank < ranks.
  DistributedSampler(std::size_t size, int rank, int ranks, DistributedSamplerOptions options = {});

  // Sets the epoch of the next pass.
  void set_epoch(std::uint64_t epoch);
  // Returns the epoch of the current pass; before the first pass, that of the next one.
  [[nodiscard]] std::uint64_t epoch() const;
  // A place in the order of samples, the same for any number of ranks.
  struct Position {
    std::uint64_t epoch = 0;
    std::uint64_t taken = 0;  // of the epoch, by all ranks together
  };
  // Returns the place behind what this rank has taken, where all ranks have taken as many. Workers
  // of a data loader take samples ahead of the training: ask for it where there are none.
  [[nodiscard]] Position position() const;
  // Goes on behind a position, which ranks of another number may have come to. The rest of the
  // epoch is dealt out to these ranks; the next pass takes it.
  void go_to(const Position& position);
  // Returns this rank's samples in each epoch.
  [[nodiscard]] std::size_t samples() const;

  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // Returns up to `batch_size` indices; none when the epoch is over.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // Saves the epoch and the place in it, so that a loaded sampler goes on where the saved one was.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troika
