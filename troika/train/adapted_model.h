// A run with adapters keeps these alone. Here is what a whole model needs besides: the base that
// they were trained on, and each pair added to its weight.
#pragma once

#include <troika/checkpoint/tensor_source.h>
#include <troika/checkpoint/tensors.h>
#include <troika/param/arena.h>
#include <troika/recipe/recipe.h>
#include <troika/session/session.h>
#include <troika/train/initial_values.h>
#include <troika/train/trainer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace troika {

// The entry of manifests, and of models that a run has saved, with the digest of the base.
inline constexpr const char* kBaseEntry = "base";

// Returns where the initial values of adapters lie, as [adapter] from says: none where they are
// drawn.
[[nodiscard]] InitialValueOptions adapter_values(const ModelOptions& model);

enum class TakeAdapters { kYes, kNo };

// Collective: has a run start from what [model] from and [adapter] from say. A run that goes on
// takes the base of its adapters again, and these from its checkpoint. Returns the digest of the
// base on rank 0; none elsewhere, and of a model without adapters.
[[nodiscard]] std::string take_all_initial_values(const ModelOptions& model, const Session& session,
                                                  Seconds patience, Trainer& trainer,
                                                  TakeAdapters adapters);

// Throws DataError where `saved` notes another digest of the base. A record without one fits any.
void check_base(const Metadata& saved, const std::string& digest, const ModelOptions& model);

// Returns the recipe of the model that a run's adapters make of their base: without them. Other
// recipes stay.
[[nodiscard]] Recipe merged_recipe(Recipe recipe);

// Fills a whole model, built from merged_recipe(recipe), with what a run has saved at `path`, a
// file as load_parameters() reads it. Where the run has adapters: with their base, and
// alpha / rank * B A added to each weight. Throws DataError naming the file and what does not fit.
void load_trained(const Recipe& recipe, const std::filesystem::path& path, Arena& arena,
                  std::span<const NamedTensor> buffers = {});

// Opens the model of a run whole: merged, where it has adapters, and else as open_run_tensors()
// does.
[[nodiscard]] std::unique_ptr<TensorSource> open_whole_tensors(const Recipe& recipe,
                                                               const std::filesystem::path& run,
                                                               std::optional<std::int64_t> step);

}  // namespace troika
