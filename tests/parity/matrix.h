// The matrix of models and layouts on which the numbers must be those of one rank.
#pragma once

#include <troika/recipe/recipe.h>
#include <troika/verify/layouts.h>

#include <filesystem>
#include <string>
#include <vector>

namespace troika::test {

// The most ranks of a layout.
inline constexpr int kMostRanks = 8;

// A model with its data, and the layouts to train it on.
struct MatrixCase {
  std::string name;  // "rmsnorm, rope, swiglu, 3 heads, ..."
  Recipe recipe;
  std::vector<TrialLayout> layouts;
};

// Token shards with a vocabulary of 251 for the recipes of the matrix: documents of many lengths,
// and many of a single token.
void write_shards(const std::filesystem::path& folder);

// Few cases that contain every pair of choices, be they of the model (norm, position, activation,
// none, all biases or norms and biases of q and k, dropout, tied or not, 3 and 7 heads, 1 kv head,
// 4 and 8 layers), its data (random; documents packed one behind the other, kept apart, or padded)
// or the layout.
[[nodiscard]] std::vector<MatrixCase> pairwise_matrix(const std::filesystem::path& shards);

// Every layout with one of these models, in turn; and every choice of norm, position, activation,
// biases or norms of q and k, dropout and tied weights on a few layouts each.
[[nodiscard]] std::vector<MatrixCase> complete_matrix(const std::filesystem::path& shards);

// The same for the MLP: pairwise over layouts of up to 4 ranks.
[[nodiscard]] MatrixCase mlp_case();

// Samples of one token, every other one without a target that counts, on data axes of 4: so a rank
// has none at all.
[[nodiscard]] MatrixCase case_without_targets(const std::filesystem::path& shards);

// Returns what `troika verify` found wrong with a case; empty if nothing is. Each entry is a
// layout, the first thing that differs, and by how much. Throws std::runtime_error where the
// command fails in another way, or leaves a layout out.
[[nodiscard]] std::vector<std::string> verify(const MatrixCase& one,
                                              const std::filesystem::path& folder);

}  // namespace troika::test
