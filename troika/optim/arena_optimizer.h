// What the optimisers have in common: their state in storages laid out like the arena, and loops
// over its chunks. Each kind then is its formula. Internal to this folder.
#pragma once

#include <ATen/ATen.h>
#include <troika/optim/chunks.h>
#include <troika/optim/optimizer.h>
#include <troika/optim/publish.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace troika {

// T is the type of the masters: float or double.
template <typename T>
class ArenaOptimizer : public Optimizer {
 public:
  [[nodiscard]] std::vector<NamedState> state() const final {
    std::vector<NamedState> states;
    for (std::size_t i = 0; i < views_.size(); ++i) {
      const std::string& name = arena_.parameters()[i]->spec().name;
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        states.push_back({name, kinds_[k], views_[i][k]});
      }
    }
    return states;
  }

 protected:
  static constexpr std::size_t kMaxKinds = 2;

  // The memory of one chunk.
  struct Piece {
    std::size_t parameter;
    bool decays;
    std::int64_t count;
    T* master;
    const T* gradient;
    std::array<T*, kMaxKinds> state;  // by kind; null beyond
  };

  // `kinds` name the storages to allocate, at most kMaxKinds.
  ArenaOptimizer(Arena& arena, std::vector<std::string_view> kinds)
      : arena_(arena), kinds_(std::move(kinds)), chunks_(chunks_of(arena)) {
    views_.resize(arena.parameters().size());
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      const at::Tensor storage = arena.allocate_like_masters();
      for (std::size_t i = 0; i < views_.size(); ++i) {
        views_[i][k] = arena.view_of(*arena.parameters()[i], storage);
      }
    }
  }

  // Calls `visit(piece, index)` for every chunk, on several threads.
  template <typename Visit>
  void for_each_piece(const Visit& visit) const {
    for_each_chunk(chunks_.size(), [&](std::size_t i) { visit(piece(chunks_[i]), i); });
  }

  // As for_each_piece, and publishes each chunk.
  template <typename Update>
  void update_pieces(const Update& update) const {
    for_each_piece([&](const Piece& piece, std::size_t i) {
      update(piece);
      publish_chunk<T>(*arena_.parameters()[piece.parameter], chunks_[i].begin, piece.count);
    });
  }

  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] std::size_t chunk_count() const { return chunks_.size(); }
  // Sums by parameter of what each chunk gave.
  [[nodiscard]] std::vector<double> fold(std::span<const double> of_chunk) const {
    return fold_by_parameter(chunks_, of_chunk, views_.size());
  }

 private:
  [[nodiscard]] Piece piece(const Chunk& chunk) const {
    const Parameter& parameter = *arena_.parameters()[chunk.parameter];
    Piece piece{chunk.parameter,
                parameter.spec().decays,
                chunk.count,
                parameter.master().mutable_data_ptr<T>() + chunk.begin,
                parameter.gradient().const_data_ptr<T>() + chunk.begin,
                {}};
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      piece.state[k] = views_[chunk.parameter][k].template mutable_data_ptr<T>() + chunk.begin;
    }
    return piece;
  }

  Arena& arena_;
  std::vector<std::string_view> kinds_;
  std::vector<Chunk> chunks_;
  std::vector<std::array<at::Tensor, kMaxKinds>> views_;  // by parameter, by kind
};

// One factory a kind, for T = float and double.
template <typename T>
std::unique_ptr<Optimizer> make_sgd(const OptimizerRecipe& recipe, Arena& arena);
template <typename T>
std::unique_ptr<Optimizer> make_adamw(const OptimizerRecipe& recipe, Arena& arena);
template <typename T>
std::unique_ptr<Optimizer> make_lamb(const OptimizerRecipe& recipe, Arena& arena);
template <typename T>
std::unique_ptr<Optimizer> make_lars(const OptimizerRecipe& recipe, Arena& arena);

}  // namespace troika
