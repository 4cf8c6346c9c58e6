// Whole parameters and gradients under their global names, put together on rank 0 from the pieces
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
  // A run of elements that a rank holds, of one parameter.
  struct Run {
    std::int64_t parameter;                    // among ModelPart::parameters()
    std::int64_t dim, slice_begin, slice_end;  // what part of it the rank holds
    std::int64_t begin, count;                 // elements of that part
  };
  static constexpr std::int64_t kRunFields = 6;

  // Also fills own_pieces_.
  [[nodiscard]] std::vector<Run> find_own_runs();
  [[nodiscard]] std::vector<NamedTensor> gather(const std::vector<at::Tensor>& own,
                                                std::string_view label) const;
  void place(const Run& run, const at::Tensor& values, const at::Tensor& whole) const;

  const Job& job_;
  const ModelPart& model_;
  bool alone_;                           // rank 0 holds everything
  std::vector<std::size_t> own_pieces_;  // in Arena::pieces(), by own run
  std::vector<std::vector<Run>> runs_;   // by rank
};

}  // namespace troika
