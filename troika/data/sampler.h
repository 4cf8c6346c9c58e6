// The sample cursor: which sample comes at which place of a run, as a pure function of the seed and
// the number of samples consumed before it. No rank, layout or batch size enters, so a resumed or
// re-sized job goes on exactly where the other one stopped. No tensors here.
#pragma once

#include <troika/base/index_range.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troika {

// One sample of a run.
struct SampleRef {
  std::int64_t source = 0;   // which of the mixed sources it comes from
  std::int64_t epoch = 0;    // the pass over that source, from 0
  std::int64_t index = 0;    // its place in the source
  std::int64_t ordinal = 0;  // its number in the run, from 0: the sample id

  bool operator==(const SampleRef&) const = default;
};

// A shuffled order of [0, size) for each epoch that can be read at any place without computing the
// rest. It is a Feistel network over the next power of two with Philox as its round function,
// walked until it lands inside the range. This is the cycle-walking cipher of Black and Rogaway,
// "Ciphers with arbitrary finite domains", CT-RSA 2002. It takes fewer than two walks on average.
class Permutation {
 public:
  // Requires size >= 1.
  Permutation(std::uint64_t key, std::int64_t size);

  // Returns the item at `position` (in [0, size)) in the order of `epoch`: a bijection of [0,
  // size).
  [[nodiscard]] std::int64_t at(std::int64_t epoch, std::int64_t position) const;
  // Writes the items at `first` and the positions after it: kAtOnce of them at a time take less
  // than at() for each.
  static constexpr std::size_t kAtOnce = 16;
  void fill(std::int64_t epoch, std::int64_t first, std::span<std::int64_t> items) const;
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  // Sends each value once through the network.
  template <std::size_t kValues>
  void walk(std::int64_t epoch, std::array<std::uint64_t, kValues>& values) const;

  std::uint64_t key_;
  std::int64_t size_;
  int low_bits_;
  int high_bits_;
};

// Deals the samples of a run out to sources by weight, evenly at any length. In each block of
// kBlock ordinals each source has a fixed number of turns, spread over the block in the order of
// Sainte-Lague's method. Weights are rounded to multiples of 1 / kBlock, and are at least that.
class Mixture {
 public:
  static constexpr std::int64_t kBlock = 65536;

  struct Turn {
    std::int64_t source = 0;
    std::int64_t position = 0;  // how many turns the source had before this one
  };

  // Requires positive and finite `weights`, of any scale, at most kBlock of them.
  explicit Mixture(std::span<const double> weights);

  [[nodiscard]] Turn at(std::int64_t ordinal) const;
  // Returns the turns of `source` in each block.
  [[nodiscard]] std::int64_t turns(std::int64_t source) const {
    return turns_[static_cast<std::size_t>(source)];
  }

 private:
  std::vector<std::int64_t> turns_;
  std::vector<std::uint16_t> source_;  // of each place of a block; empty for one source
  std::vector<std::uint16_t> rank_;    // turns of that source earlier in the block
};

// Combines mixture and permutations. The samples that a source gives to the run, in order, are pass
// after pass over that source. Each pass holds each of its samples exactly once. With one source
// the passes are the epochs of the run. Const access is thread safe.
class Sampler {
 public:
  // Takes the samples of each source, all >= 1, and one weight a source.
  Sampler(std::uint64_t seed, std::span<const std::int64_t> sizes, std::span<const double> weights);

  // Returns the sample with this number in the run; ordinal >= 0, without an upper bound.
  [[nodiscard]] SampleRef at(std::int64_t ordinal) const;

 private:
  Mixture mixture_;
  std::vector<Permutation> order_;
};

// Cuts a range into microbatches in ascending order; only the last may be smaller.
[[nodiscard]] std::vector<IndexRange> microbatches_of(IndexRange range,
                                                      std::int64_t micro_batch_size);

}  // namespace troika
