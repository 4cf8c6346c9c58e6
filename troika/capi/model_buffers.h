// The buffers of a model that all ranks train, such as the running statistics of its batch-norms:
// equal on all ranks after each step, so that every rank predicts the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/tensor_map.h>
#include <troika/session/session.h>

#include <cstdint>
#include <vector>

namespace troika {

class ModelBuffers {
 public:
  // Takes the buffers, in their memory. Ranks that compute them together keep them equal.
  enum class Kept { kByEachRank, kTogether };
  ModelBuffers(std::vector<NamedTensor> buffers, Session session, Kept kept);

  [[nodiscard]] const std::vector<NamedTensor>& all() const { return buffers_; }

  // Copies the values, before a step.
  void remember();
  // Writes the copies back, after a step that does not count.
  void restore();
  // Moves the buffers by the mean of all ranks' changes since remember(), each weighted by its
  // samples in the step. Buffers that no rank has changed keep their bits. Two all-reduces: eight
  // bytes a buffer, and eight for each number of those that have changed. Collective. Throws
  // DeadlineError, PeerError.
  void average(std::int64_t samples);
  // Takes over those of rank 0. Collective.
  void broadcast();

 private:
  // Returns the positions of the buffers that some rank has changed, and the samples of all ranks.
  struct Changed {
    std::vector<std::size_t> positions;
    double samples;
  };
  [[nodiscard]] Changed changed_on_any_rank(std::int64_t samples) const;

  std::vector<NamedTensor> buffers_;
  std::vector<at::Tensor> before_;
  Session session_;
  Kept kept_;
};

}  // namespace troika
