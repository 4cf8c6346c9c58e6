// The kinds of data that [data] kind can name. Each is a folder in sources/ that declares its keys,
// what it can feed, and how it is opened. A new kind is a folder, a line in kinds.cc and one in
// CMakeLists.txt.
#pragma once

#include <troika/config/component.h>
#include <troika/data/dataset.h>
#include <troika/nn/sample_spec.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

class HostWork;

// The use of the samples of a trained model.
enum class SampleUse {
  kEvaluate,  // with targets, in the order that a run evaluates them in
  kPredict    // without: targets are zeros. In the order of the source, whose numbers are their ids
};

// The data that a model was trained on, where others are opened for it.
struct TrainedData {
  std::string description;  // Dataset::description()
  SampleUse use = SampleUse::kEvaluate;
};

class DataKind : public Component {
 public:
  // Returns every kind that there is.
  [[nodiscard]] static std::span<const DataKind* const> all();
  [[nodiscard]] static const DataKind& default_kind();

  // Throws UsageError unless it can feed a model of kind `model` that takes such samples.
  virtual void check_model(const Options& options, const SampleSpec& sample, std::string_view model,
                           const Origins& origins) const;
  // Throws UsageError unless a run can begin: a recipe may be written before its files are named.
  virtual void check_ready(const Options& options, const Origins& origins) const;
  // Says for the user what check_ready() would refuse; empty where all is there.
  [[nodiscard]] virtual std::vector<std::string> warnings(const Options& options,
                                                          const Origins& origins) const;
  // Returns how many held-out samples there can be, before any file is opened.
  [[nodiscard]] virtual std::int64_t max_held_out_samples(const Options& options) const = 0;
  // Returns whether its samples have this optional tensor of a model.
  [[nodiscard]] virtual bool gives(const Options& options, const TensorSpec& optional) const;
  // Returns the sample with the sizes that the model has left open (a dimension or a range of 0),
  // where the data say them. Reads from the files what it needs. Throws UsageError and DataError.
  [[nodiscard]] virtual std::optional<SampleSpec> describe(const Options& options,
                                                           const SampleSpec& sample,
                                                           const Origins& origins) const;
  // Returns the tokenizer that turns tokens into text; nothing where they stand for none.
  [[nodiscard]] virtual std::optional<std::string> tokenizer(const Options& options) const;
  // Opens valid options; see open_dataset().
  [[nodiscard]] virtual std::unique_ptr<Dataset> open(const Options& options,
                                                      const SampleSpec& sample,
                                                      std::uint64_t seed) const = 0;
  // Opens the same for a rank of a host, whose ranks do some of the work once for all of them.
  // Collective among these. As open() for kinds that share no work.
  [[nodiscard]] virtual std::unique_ptr<Dataset> open_on_host(const Options& options,
                                                              const SampleSpec& sample,
                                                              std::uint64_t seed,
                                                              HostWork& host) const;
  // Opens data for a trained model: nothing is learned from them, they become tensors as `trained`
  // says. As open() for kinds that learn nothing.
  [[nodiscard]] virtual std::unique_ptr<Dataset> open_for_model(const Options& options,
                                                                const SampleSpec& sample,
                                                                std::uint64_t seed,
                                                                const TrainedData& trained) const;
  // Returns options for all samples of other files, none of them held out. `asked` has the keys
  // that the user has set for them. Throws UsageError where the kind reads no files of samples, or
  // a key does not go with them.
  [[nodiscard]] virtual Options on_files(const Options& options,
                                         const std::vector<std::string>& files,
                                         std::span<const std::string> asked) const;
  // Returns options whose held-out side is the test side; nothing where a kind has none.
  [[nodiscard]] virtual std::optional<Options> on_test_side(const Options& options) const;
};

// The section [data] of a recipe.
using DataOptions = Chosen<DataKind>;

// Opens the data of a valid recipe for a model that takes such samples. `seed` is the recipe's.
// Throws DataError naming the file, the glob that matches nothing, or the tokenizer that did not
// make the shards.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const DataOptions& data,
                                                    const SampleSpec& sample, std::uint64_t seed);
// Opens them as a rank of a host does. Collective among the ranks of `host`.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const DataOptions& data,
                                                    const SampleSpec& sample, std::uint64_t seed,
                                                    HostWork& host);

}  // namespace troika
