// The files that every host reads a model from, as sources that ranks compare before they train on
// them (session/source_agreement.h).
#pragma once

#include <troika/models/kind.h>
#include <troika/session/source_agreement.h>
#include <troika/train/job.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troika {

// Returns the files of a model's kind: the scripts of `torchscript`, the library of `plugin` with
// the files that its own kind names. None of those whose values are drawn from the seed.
[[nodiscard]] std::vector<SharedSource> model_sources(const ModelOptions& model);

// Returns a digest of each of these files by its title, for processes that are not ranks of one
// job. Throws DataError naming a file that cannot be read.
[[nodiscard]] std::map<std::string, std::string> digests_of_model(const ModelOptions& model);

// Throws DataError on every rank, naming the file and both hosts, where they have other files of
// the model. Collective.
void agree_on_model(const ModelOptions& model, const Job& job);

// Returns the parts of a file: the records of an archive by the checksums in its directory, without
// what depends on where it was written; any other file whole. Throws DataError naming the file.
[[nodiscard]] std::vector<SourcePart> parts_of_file(const std::filesystem::path& path);

}  // namespace troika
