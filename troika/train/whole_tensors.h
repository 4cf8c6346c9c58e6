// Whole parameters and gradients under their global names, assembled on rank 0 from the shards
// that the ranks of any layout hold: for dumps and saved models.
#pragma once

#include <troika/checkpoint/tensors.h>
#include <troika/train/job.h>
#include <troika/train/model_part.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace troika {

class WholeTensors {
 public:
  // Collective: who holds what. `model` must outlive it. Throws DeadlineError, PeerError.
  WholeTensors(const Job& job, const ModelPart& model);

  // Collective, each with the job's deadline for storage: on rank 0 all tensors of the model,
  // sorted by name, in the masters' type; nothing elsewhere. Where rank 0 holds all of a model the
  // masters are views, not copies.
  [[nodiscard]] std::vector<NamedTensor> masters() const;
  // What the arenas hold after their reduction, times `scale`.
  [[nodiscard]] std::vector<NamedTensor> gradients(double scale) const;

 private:
  // A flat range of elements of one parameter that a rank holds.
  struct OwnedRange {
    std::int64_t parameter;                    // among ModelPart::parameters()
    std::int64_t dim, slice_begin, slice_end;  // what part of it the rank holds
    std::int64_t begin, count;                 // elements of that part
  };
  static constexpr std::int64_t kRangeFields = 6;

  // Also fills owned_shards_.
  [[nodiscard]] std::vector<OwnedRange> find_owned_ranges();
  [[nodiscard]] std::vector<NamedTensor> gather(const std::vector<at::Tensor>& own,
                                                std::string_view label) const;
  void copy_into_whole(const OwnedRange& range, const at::Tensor& values,
                       const at::Tensor& whole) const;

  const Job& job_;
  const ModelPart& model_;
  bool alone_;                                   // rank 0 holds everything
  std::vector<std::size_t> owned_shards_;        // in Arena::local_shards(), by owned range
  std::vector<std::vector<OwnedRange>> ranges_;  // by rank
};

}  // namespace troika
