// The data of a run: two sides, train and held-out, of numbered samples that can be built in any
// order, on any rank, into microbatches.
#pragma once

#include <troika/data/packing.h>
#include <troika/data/sampler.h>
#include <troika/nn/microbatch.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troika {

// The samples of a generated stream, which never ends.
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// What a data set holds, for messages and reports. 0 where something does not apply.
struct DatasetFacts {
  std::int64_t documents = 0;  // on both sides
  std::int64_t held_out_documents = 0;
  std::int64_t tokens = 0;  // targets that count in one pass, on both sides
  double text_bytes = 0;
};

// Const access is thread safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Train: samples of one pass over every source, or kUnlimited. Held-out: how many there are; 0:
  // nothing to evaluate on.
  [[nodiscard]] virtual std::int64_t samples(Split split) const = 0;
  // The sample with this number. Train: any ordinal >= 0; a pure function of the seed. Held-out:
  // ordinal < samples(kHeldOut), each sample once, shuffled, so that the first few speak for all;
  // the same order whatever the seed.
  [[nodiscard]] virtual SampleRef at(Split split, std::int64_t ordinal) const = 0;
  // The samples as tensors on the CPU. Throws DataError naming file and document. Runs on the
  // calling thread alone.
  [[nodiscard]] virtual Microbatch microbatch(Split split, std::span<const SampleRef> samples,
                                              std::int64_t step) const = 0;

  // 16 digits that tell data lists apart: of the documents' keys and lengths in their order, not of
  // their paths.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  // Bytes of text for each target that counts, on the held-out side, or on the train side where
  // there is no other: bits per byte = mean loss / ln 2 / this. Nothing where there is no text.
  [[nodiscard]] virtual std::optional<double> bytes_per_token() const = 0;
  [[nodiscard]] virtual DatasetFacts facts() const = 0;
  // What the user should know, one line each, such as an empty held-out side.
  [[nodiscard]] virtual const std::vector<std::string>& warnings() const = 0;
};

// Samples [range.first, range.first + range.count) of a side, by ordinal, as microbatches in
// ascending order of which only the last may be smaller, numbered from 0.
[[nodiscard]] std::vector<Microbatch> build_microbatches(const Dataset& dataset, Split split,
                                                         IndexRange range,
                                                         std::int64_t micro_batch_size,
                                                         std::int64_t step);

}  // namespace troika
