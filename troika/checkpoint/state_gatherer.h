// Whole tensors on rank 0 from the parts that the ranks of any layout hold: for dumps, saved models
// and checkpoints in one file.
#pragma once

#include <troika/comm/group.h>
#include <troika/param/named_tensor.h>
#include <troika/param/state_dict.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

class StateGatherer {
 public:
  // Collective: learns which rank holds each part. `whole` lists the tensors, the same on every
  // rank, sorted by name. `own` are this rank's parts; only shapes and names are read. `timeout` is
  // for each collective here and later. Throws DeadlineError, PeerError.
  StateGatherer(Group world, std::vector<StateSpec> whole, std::span<const StateTensor> own,
                Seconds timeout);

  // Collective: returns all tensors, in order, on rank 0, and none elsewhere. `own` are the values
  // of this rank's parts, in the order of the constructor's. A tensor that rank 0 owns all of is a
  // view of its part, no copy.
  [[nodiscard]] std::vector<NamedTensor> gather(std::span<const at::Tensor> own,
                                                std::string_view label) const;

 private:
  // The part of a tensor that a rank writes.
  struct OwnedPart {
    std::size_t whole;  // in whole_
    ShardDescriptor shard;
  };
  void exchange_parts(std::span<const StateTensor> own);
  // Returns the owned values of one type, end to end.
  [[nodiscard]] at::Tensor flatten(std::span<const at::Tensor> own, at::ScalarType type) const;
  [[nodiscard]] at::Tensor values_of(int peer, at::ScalarType type, const at::Tensor& own,
                                     const Call& call) const;
  [[nodiscard]] std::vector<at::ScalarType> types() const;

  Group world_;
  Seconds timeout_;
  std::vector<StateSpec> whole_;
  std::vector<std::size_t> owned_;             // in the constructor's `own`
  std::vector<std::vector<OwnedPart>> parts_;  // by rank; those of `owned_` on this one
};

}  // namespace troika
