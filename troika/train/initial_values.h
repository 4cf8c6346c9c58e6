// Takes the initial values of a model from what another training has saved, as [model] from says:
// on any layout, whole or in part. Those of adapters come likewise from a folder of `peft`, as
// [adapter] from says.
#pragma once

#include <troika/checkpoint/manifest.h>
#include <troika/checkpoint/value_source.h>
#include <troika/models/initial_values.h>
#include <troika/param/state_dict.h>
#include <troika/session/session.h>
#include <troika/session/source_agreement.h>
#include <troika/train/model_part.h>
#include <troika/train/trainer.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace troika {

// Says which tensors of a model are taken, and what begins an error about them.
enum class ValuesOf { kModel, kAdapters };

// Returns where the values of `path` lie: the path itself where it is a file or a checkpoint; the
// newest checkpoint of a folder of them; of a run, model.safetensors where it is finished, and its
// newest checkpoint elsewhere. Throws DataError where there is nothing of these.
[[nodiscard]] std::filesystem::path find_values(const std::filesystem::path& path,
                                                ValuesOf of = ValuesOf::kModel);

// Returns the name in `saved` of each tensor of the model that is taken from there. `model` lists
// the whole model. Throws DataError, one line that names what is missing, what the model does not
// have, what has another shape or type, and patterns that fit nothing; the first few of each.
[[nodiscard]] std::map<std::string, std::string> match_values(
    const InitialValueOptions& options, std::span<const StateSpec> model,
    const std::map<std::string, ManifestTensor>& saved, const std::string& path,
    ValuesOf of = ValuesOf::kModel);

// The values that a run is to start from, opened and found to go with its model.
class InitialValues {
 public:
  // Not collective. Throws DataError.
  InitialValues(const InitialValueOptions& options, const ModelPart& model,
                ValuesOf of = ValuesOf::kModel);
  // The same for tensors of a whole model, `specs`, that lie in `places`.
  InitialValues(const InitialValueOptions& options, std::span<const StateSpec> specs,
                const StateDict& places, ValuesOf of = ValuesOf::kModel);

  // Returns them as what ranks compare. Valid as long as this.
  [[nodiscard]] SharedSource shared_source();
  // Return the numbers of the files of a checkpoint that hold a part of a tensor, and compare one
  // of them with its SHA-256. Throws DataError.
  [[nodiscard]] std::vector<std::size_t> files_of(const StateTensor& part) const {
    return source_.files_of(part.name);
  }
  void verify(std::size_t file, DigestCache& cache) { source_.verify(file, cache); }
  // Returns this rank's parts of the model that are taken, as views under their names in the
  // source; and reads one. Throws DataError. Have the model publish them once all are there.
  [[nodiscard]] std::span<const StateTensor> wanted() const { return wanted_.tensors(); }
  void read(const StateTensor& part) { source_.read(part.name, part); }
  // Returns whether hosts with copies of their own compare a sample of these values alone.
  [[nodiscard]] bool is_sampled() const { return source_.is_sampled(used_); }
  // Returns what tells these values from others: of large ones, a sample of each tensor does.
  [[nodiscard]] std::string digest() const;
  // Returns the number of tensors of the whole model that are taken, and where they lie.
  [[nodiscard]] std::size_t tensors() const { return used_.size(); }
  [[nodiscard]] const std::filesystem::path& path() const { return source_.path(); }

 private:
  std::string title_;
  ValueSource source_;
  StateDict wanted_;
  std::set<std::string> used_;  // names in the source, of the whole model
};

// Collective: has a run that begins start from them, and says so; nothing where values are drawn.
// Every host must have the same. One rank of those with the same part reads it, and a rank of each
// host compares a checkpoint's files that are read there with their SHA-256. `patience` is for each
// collective. Throws DataError, the same on every rank.
void take_initial_values(const InitialValueOptions& options, const Session& session,
                         Seconds patience, Trainer& trainer, ValuesOf of = ValuesOf::kModel);
// Collective: writes them to the places of a model that has no trainer, in the same way: it has to
// publish them. Returns a line that says what was taken.
[[nodiscard]] std::string take_initial_values(const InitialValueOptions& options,
                                              const Session& session, Seconds patience,
                                              const ModelPart& model,
                                              ValuesOf of = ValuesOf::kModel);

}  // namespace troika
