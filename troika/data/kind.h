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
#include <string>
#include <string_view>
#include <vector>

namespace troika {

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
  // Returns the tokenizer that turns tokens into text; nothing where they stand for none.
  [[nodiscard]] virtual std::optional<std::string> tokenizer(const Options& options) const;
  // Opens valid options; see open_dataset().
  [[nodiscard]] virtual std::unique_ptr<Dataset> open(const Options& options,
                                                      const SampleSpec& sample,
                                                      std::uint64_t seed) const = 0;
};

// The section [data] of a recipe.
using DataOptions = Chosen<DataKind>;

// Opens the data of a valid recipe for a model that takes such samples. `seed` is the recipe's.
// Throws DataError naming the file, the glob that matches nothing, or the tokenizer that did not
// make the shards.
[[nodiscard]] std::unique_ptr<Dataset> open_dataset(const DataOptions& data,
                                                    const SampleSpec& sample, std::uint64_t seed);

}  // namespace troika
