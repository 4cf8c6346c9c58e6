// Internal. What a ModulePipeline resolves before it has an arena: options, the
// cut into stages, groups, and errors that every rank of the mesh throws.
#pragma once

#include <troika/parallel/data_parallel/replica_agreement.h>
#include <troika/parallel/pipeline/module_pipeline.h>
#include <troika/param/arena.h>

#include <span>
#include <string>
#include <vector>

namespace troika::detail {

// Resolves the options: a pipeline of one rank takes every setting. Throws UsageError.
[[nodiscard]] ModulePipelineOptions resolved(ModulePipelineOptions options, int pipeline);
[[nodiscard]] ModulePipelineOptions with_timeout(ModulePipelineOptions options, Seconds usual);

// Throws UsageError on every rank of the mesh unless all have the same options and units of the
// same names. Collective.
void agree_on_setup(const PipelineGroups& groups, Seconds timeout, std::span<const NamedUnit> units,
                    const ModulePipelineOptions& options);

// Returns the borders of the stages among the units. Throws UsageError, the same on all ranks.
[[nodiscard]] std::vector<int> cut_units(std::span<const NamedUnit> units,
                                         const ModulePipelineOptions& options);

// Collective.
[[nodiscard]] PipelineGroups groups_of(const Session& session, int pipeline);

// Returns the names of the parameters of the whole model, all stages. Collective over `pipeline`.
[[nodiscard]] std::vector<std::string> names_of_all(const Arena& arena, const Group& pipeline,
                                                    Seconds timeout);

// Throws UsageError on every rank of the mesh, in the same words, if any of them has an error.
// Collective.
void throw_on_all_ranks(const PipelineGroups& groups, Seconds timeout, const ValidationError& own);

}  // namespace troika::detail
