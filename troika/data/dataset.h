// The data of a run: two sides, train and held-out, of numbered samples that can be built in any
// order, on any rank, into microbatches.
#pragma once

#include <troika/data/kept_columns.h>
#include <troika/data/packing.h>
#include <troika/data/sampler.h>
#include <troika/data/value_scale.h>
#include <troika/nn/microbatch.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The number of samples of a generated stream, which never ends.
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// The contents of a data set, for messages and reports. 0 where a figure does not apply.
struct DatasetFacts {
  std::int64_t documents = 0;  // on both sides
  std::int64_t held_out_documents = 0;
  std::int64_t tokens = 0;  // targets that count in one pass, on both sides
  double text_bytes = 0;
  std::int64_t rows = 0;  // of a table, on both sides
  std::int64_t held_out_rows = 0;
  std::string_view rows_are = "rows";
};

// A file of a data set.
struct DataFile {
  std::string path;        // as the recipe's paths lead to it; a URL without its options
  std::int64_t size = 0;   // bytes
  std::uint64_t head = 0;  // hash of what opening the data reads of it; 0: nothing

  bool operator==(const DataFile&) const = default;
};

// Const access is thread safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Returns the number of samples. Train: those of one pass over every source, or kUnlimited.
  // Held-out: all of them; 0 means that there are none to evaluate on.
  [[nodiscard]] virtual std::int64_t samples(Split split) const = 0;
  // Returns the sample with this number. Train: any ordinal >= 0; a pure function of the seed.
  // Held-out: ordinal < samples(kHeldOut), each sample once. These are shuffled, so that the first
  // few represent all, in the same order with any seed.
  [[nodiscard]] virtual SampleRef at(Split split, std::int64_t ordinal) const = 0;
  // Returns the samples as tensors on the CPU. Throws DataError naming file and document. Runs on
  // the calling thread and, where images are decoded, on threads of the data set's own.
  [[nodiscard]] virtual Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                              std::int64_t step) const = 0;

  // Returns 16 digits that tell data lists apart: a hash of the documents' keys and lengths in
  // their order, not of their paths.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  // Returns the files that the samples are made of, in the order in which they are numbered. Empty
  // where the data are generated.
  [[nodiscard]] virtual std::vector<DataFile> files() const;
  // Returns the bytes of text for each target that counts, on the held-out side, or on the train
  // side where there is no other. Bits per byte = mean loss / ln 2 / this. Returns nullopt where
  // there is no text.
  [[nodiscard]] virtual std::optional<double> bytes_per_token() const = 0;
  [[nodiscard]] virtual DatasetFacts facts() const = 0;
  // Returns how the data became tensors, as JSON. Predictions on other data need it. Empty where
  // nothing was learned from them.
  [[nodiscard]] virtual std::string description() const { return ""; }
  // Returns what the data call the numbers of a target: its classes by number, or its answers or
  // values by place. Empty where they have no names.
  [[nodiscard]] virtual std::vector<std::string> target_names() const { return {}; }
  // Returns the unit of each number of the target, by place. Empty where it is the data's own.
  [[nodiscard]] virtual std::vector<ValueScale> target_scales() const { return {}; }
  // Returns the names of samples by their ids, where they are opened to predict and have some.
  // Empty else.
  [[nodiscard]] virtual std::vector<std::string> sample_names() const { return {}; }
  // Returns what of the data goes where, for the first lines of a run, such as the columns of each
  // tensor. Empty where the recipe says it all.
  [[nodiscard]] virtual std::vector<std::string> contents() const { return {}; }
  // Opens columns of the data by their names, for samples that were opened to predict. It must not
  // outlive the data set. Throws DataError naming a column that is not there; UsageError where
  // samples have no columns.
  [[nodiscard]] virtual std::unique_ptr<KeptColumns> open_columns(
      std::span<const std::string> names) const;
  // Returns what was noticed while samples were made, for the user, one line each.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
  // Returns warnings for the user, one line each, such as an empty held-out side.
  [[nodiscard]] virtual const std::vector<std::string>& warnings() const = 0;
};

// Returns samples [range.first, range.first + range.count) of a side, by ordinal, as microbatches.
// They are in ascending order, numbered from 0, and only the last may be smaller.
[[nodiscard]] std::vector<Microbatch> build_microbatches(const Dataset& dataset, Split split,
                                                         IndexRange range,
                                                         std::int64_t micro_batch_size,
                                                         std::int64_t step);

}  // namespace troika
