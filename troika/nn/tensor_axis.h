// The tensor axis as layers see it (Shoeybi et al. 2019). Between layers each of its ranks holds a
// slice of the tokens of a microbatch (sequence parallelism, Korthikanti et al. 2022); a layer
// that is split over the axis brings the tokens together, computes with its slice of the weights,
// and sums the partial results back onto the slices.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/index_range.h>
#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/nn/microbatch.h>
#include <troika/param/spec.h>

#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The purpose of a layer's collective, as messages and flight records name it: "layer 3 attention
// input, microbatch 2 (stage 1)". The text is formed only where there is a collective.
struct LayerLabel {
  std::string_view layer;
  std::string_view what;
  Pass pass = {};

  [[nodiscard]] std::string text() const;
};

// The tensor-parallel axis. A small value; copies share the group. With one rank every operation
// costs nothing.
class TensorAxis {
 public:
  // Makes an axis of one rank.
  TensorAxis() = default;
  // Makes the axis of `group`, with `timeout` for each collective.
  TensorAxis(Group group, Seconds timeout);

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] bool split() const { return size() > 1; }
  // Returns this rank's slice of `count` items.
  [[nodiscard]] IndexRange slice_of(std::int64_t count) const {
    return even_split(count, rank(), size());
  }

  // Returns all tokens [tokens, dim] from the slices of all ranks [slice_of(tokens).count, dim].
  // With one rank returns `local` itself.
  [[nodiscard]] at::Tensor all_gather_tokens(const at::Tensor& local, std::int64_t tokens,
                                             const LayerLabel& label) const;
  // Returns this rank's slice [slice_of(tokens).count, dim] of the sum over all ranks' [tokens,
  // dim]. With one rank returns `partial` itself.
  [[nodiscard]] at::Tensor reduce_scatter_tokens(const at::Tensor& partial,
                                                 const LayerLabel& label) const;
  // Returns the `own` of all ranks, which have the same shape: [size(), ...].
  [[nodiscard]] at::Tensor all_gather_each(const at::Tensor& own, const LayerLabel& label) const;

  // Marks a parameter that every rank of the axis has whole but applies to its own tokens only. Its
  // gradient is a partial sum, and rank 0 counts it.
  void mark_replicated(ParameterSpec& spec) const;

 private:
  // Returns the number of elements in each rank's slice of [tokens, dim].
  [[nodiscard]] std::vector<std::int64_t> slice_sizes(std::int64_t tokens, std::int64_t dim) const;

  Group group_;
  Seconds timeout_ = Seconds(0);
};

}  // namespace troika
