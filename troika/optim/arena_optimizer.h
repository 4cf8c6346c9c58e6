// What the optimisers have in common: their state in storages laid out like the arena, and loops
// over its chunks. Each kind then is its formula. Internal to this folder.
#pragma once

#include <ATen/ATen.h>
#include <troika/optim/chunks.h>
#include <troika/optim/optimizer.h>
#include <troika/optim/publish.h>
#include <troika/optim/shard_squares.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

// The base of optimisers over an arena. T is the type of the masters: float or double.
template <typename T>
class ArenaOptimizer : public Optimizer {
 public:
  [[nodiscard]] std::vector<NamedState> state() const final {
    std::vector<NamedState> states;
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const auto& own = arena_.trained_shards()[i];
      const std::string& name = arena_.parameters()[own.parameter]->spec().name;
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        states.push_back({name, kinds_[k], own.begin, views_[i][k]});
      }
    }
    return states;
  }

 protected:
  static constexpr std::size_t kMaxKinds = 2;

  // The memory of one chunk.
  struct ChunkView {
    std::size_t parameter;
    bool decays;
    double lr_factor, weight_decay;  // the second is 0 where the parameter does not decay
    std::int64_t count;
    std::int64_t counted;  // of them, the leading ones that norms take
    T* master;
    const T* gradient;
    std::array<T*, kMaxKinds> state;  // by kind; null beyond
  };

  // Allocates the storages that `kinds` names, at most kMaxKinds.
  ArenaOptimizer(Arena& arena, SharedSums sums, double weight_decay,
                 std::vector<std::string_view> kinds)
      : arena_(arena),
        sums_(std::move(sums)),
        weight_decay_(weight_decay),
        kinds_(std::move(kinds)),
        chunks_(chunks_of(arena)) {
    views_.resize(arena.trained_shards().size());
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      const at::Tensor storage = arena.allocate_state();
      for (std::size_t i = 0; i < views_.size(); ++i) views_[i][k] = arena.view_of(i, storage);
    }
  }

  // Calls `visit(view, index)` for every chunk, on several threads.
  template <typename Visit>
  void for_each_chunk_view(const Visit& visit) const {
    for_each_chunk(chunks_.size(), [&](std::size_t i) { visit(view(chunks_[i]), i); });
  }

  // Calls `update(view)` for every chunk that for_each_chunk_view() visits, and publishes the
  // chunk.
  template <typename Update>
  void update_chunks(const Update& update) const {
    for_each_chunk_view([&](const ChunkView& view, std::size_t i) {
      update(view);
      const auto& own = arena_.trained_shards()[chunks_[i].shard];
      publish_chunk<T>(own, chunks_[i].offset_in(own), view.count);
    });
  }

  // A shard as tensors, on the arena's device: for what is made of ATen's operators.
  struct ShardView {
    std::size_t index;  // in Arena::trained_shards()
    std::size_t parameter;
    bool decays;
    double lr_factor, weight_decay;  // the second is 0 where the parameter does not decay
    at::Tensor master, gradient;
    std::array<at::Tensor, kMaxKinds> state;  // by kind; undefined beyond
  };

  // Returns whether the arena lies in the host's memory, where chunks are loops.
  [[nodiscard]] bool on_host() const { return arena_.device().is_cpu(); }
  // Returns the scale of an update on a device, as numbers there.
  [[nodiscard]] DeviceScale device_scale_of(const StepInput& input) const {
    if (input.device_scale.factor.defined()) return input.device_scale;
    const at::TensorOptions there = at::device(arena_.device());
    return {at::full({}, input.gradient_scale, there.dtype(at::kDouble)),
            at::ones({}, there.dtype(at::kBool))};
  }
  // Calls `visit(view)` for every shard of a trained parameter.
  template <typename Visit>
  void for_each_shard(const Visit& visit) const {
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const LocalShard& own = arena_.trained_shards()[i];
      const ParameterSpec& spec = arena_.parameters()[own.parameter]->spec();
      visit(ShardView{i, own.parameter, spec.decays, spec.lr_factor, weight_decay_of(own.parameter),
                      own.master, own.gradient, views_[i]});
    }
  }
  // Calls `update(view)` for every shard that for_each_shard() visits, and publishes the shard.
  template <typename Update>
  void update_shards(const Update& update) const {
    for_each_shard([&](const ShardView& view) {
      update(view);
      const LocalShard& own = arena_.trained_shards()[view.index];
      if (!own.working_weight.is_alias_of(own.master)) own.working_weight.copy_(own.master);
    });
  }
  // Collective: returns the sums of squares by parameter of `values`, one tensor a shard. Counts
  // the shards that norms count; an undefined tensor counts as zero.
  [[nodiscard]] std::vector<double> squares_by_parameter(const std::vector<at::Tensor>& values,
                                                         std::string_view label) const {
    return sums_->by_parameter(detail::ShardSquares(arena_, values).by_chunk(sums_->deadline()),
                               label);
  }

  [[nodiscard]] const Arena& arena() const { return arena_; }
  // Returns the weight decay of a parameter; 0 if it does not decay.
  [[nodiscard]] double weight_decay_of(std::size_t parameter) const {
    const ParameterSpec& spec = arena_.parameters()[parameter]->spec();
    return spec.weight_decay.value_or(spec.decays ? weight_decay_ : 0);
  }
  [[nodiscard]] std::size_t shard_count() const { return views_.size(); }
  [[nodiscard]] std::size_t chunk_count() const { return chunks_.size(); }
  // Collective: returns the sums by parameter of the chunks' values.
  [[nodiscard]] std::vector<double> reduce_by_parameter(std::span<const double> of_chunk,
                                                        std::string_view label) const {
    return sums_->by_parameter(of_chunk, label);
  }

 private:
  [[nodiscard]] ChunkView view(const Chunk& chunk) const {
    const auto& own = arena_.trained_shards()[chunk.shard];
    const std::int64_t offset = chunk.offset_in(own);
    const ParameterSpec& spec = arena_.parameters()[chunk.parameter]->spec();
    ChunkView view{chunk.parameter,
                   spec.decays,
                   spec.lr_factor,
                   weight_decay_of(chunk.parameter),
                   chunk.count,
                   chunk.counted,
                   own.master.template mutable_data_ptr<T>() + offset,
                   own.gradient.template const_data_ptr<T>() + offset,
                   {}};
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      view.state[k] = views_[chunk.shard][k].template mutable_data_ptr<T>() + offset;
    }
    return view;
  }

  Arena& arena_;
  SharedSums sums_;
  double weight_decay_;
  std::vector<std::string_view> kinds_;
  std::vector<Chunk> chunks_;
  std::vector<std::array<at::Tensor, kMaxKinds>> views_;  // by shard, by kind
};

}  // namespace troika
