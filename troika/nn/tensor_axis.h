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

// What a collective of a layer is for, as messages and flight records tell it: "layer 3 attention
// input, microbatch 2 (stage 1)". Put together only where there is a collective.
struct LayerLabel {
  std::string_view layer;
  std::string_view what;
  Pass pass = {};

  [[nodiscard]] std::string text() const;
};

// A small value; copies share the group. With one rank everything here costs nothing.
class TensorAxis {
 public:
  // One rank.
  TensorAxis() = default;
  // `timeout` is that of each collective.
  TensorAxis(Group group, Seconds timeout);

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] bool split() const { return size() > 1; }
  // This rank's slice of `count` things.
  [[nodiscard]] IndexRange slice_of(std::int64_t count) const {
    return even_split(count, rank(), size());
  }

  // All tokens [tokens, dim] from the slices of all ranks [slice_of(tokens).count, dim]. With one
  // rank `local` itself.
  [[nodiscard]] at::Tensor all_gather_tokens(const at::Tensor& local, std::int64_t tokens,
                                             const LayerLabel& label) const;
  // This rank's slice [slice_of(tokens).count, dim] of the sum over all ranks' [tokens, dim]. With
  // one rank `partial` itself.
  [[nodiscard]] at::Tensor reduce_scatter_tokens(const at::Tensor& partial,
                                                 const LayerLabel& label) const;
  // The `own` of all ranks, which have the same shape: [size(), ...].
  [[nodiscard]] at::Tensor all_gather_each(const at::Tensor& own, const LayerLabel& label) const;

  // For a parameter that every rank of the axis has whole but meets with its own tokens only: its
  // gradient is a partial sum, and rank 0 counts it.
  void mark_replicated(ParameterSpec& spec) const;

 private:
  // Elements of the slices of all ranks of [tokens, dim].
  [[nodiscard]] std::vector<std::int64_t> slice_sizes(std::int64_t tokens, std::int64_t dim) const;

  Group group_;
  Seconds timeout_ = Seconds(0);
};

}  // namespace troika
