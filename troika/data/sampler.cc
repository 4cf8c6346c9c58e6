#include <troika/base/error.h>
#include <troika/base/philox.h>
#include <troika/base/random.h>
#include <troika/base/vectorize.h>
#include <troika/data/sampler.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <queue>
#include <string>

namespace troika {
namespace {

// Eight rounds: twice what makes a Feistel network of ideal rounds indistinguishable from random.
constexpr std::uint64_t kRounds = 8;

std::uint64_t low_mask(int bits) {
  return (std::uint64_t{1} << bits) - 1;
}

// Turns of each source in a block: largest remainders, but never none.
std::vector<std::int64_t> turns_by_weight(std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> turns(weights.size());
  std::vector<std::size_t> by_remainder(weights.size());
  std::vector<double> remainder(weights.size());
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double exact = weights[k] / total * static_cast<double>(Mixture::kBlock);
    turns[k] = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(exact)));
    remainder[k] = exact - static_cast<double>(turns[k]);
    by_remainder[k] = k;
  }
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](std::size_t a, std::size_t b) { return remainder[a] > remainder[b]; });
  std::int64_t missing =
      Mixture::kBlock - std::accumulate(turns.begin(), turns.end(), std::int64_t{0});
  for (std::size_t i = 0; missing > 0; i = (i + 1) % turns.size(), --missing) {
    ++turns[by_remainder[i]];
  }
  // Sources that were raised to one turn take it from the largest.
  for (; missing < 0; ++missing) --*std::max_element(turns.begin(), turns.end());
  return turns;
}

}  // namespace

Permutation::Permutation(std::uint64_t key, std::int64_t size) : key_(key), size_(size) {
  check(size >= 1, "a permutation of nothing");
  const int bits =
      std::max(2, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size) - 1)));
  high_bits_ = bits / 2;
  low_bits_ = bits - high_bits_;
}

template <std::size_t kValues>
void Permutation::walk(std::int64_t epoch, std::array<std::uint64_t, kValues>& values) const {
  const std::uint64_t high_mask = low_mask(high_bits_), mask = low_mask(low_bits_);
  std::array<std::uint64_t, kValues> high{}, low{};
  for (std::size_t i = 0; i < kValues; ++i) {
    high[i] = values[i] >> low_bits_;
    low[i] = values[i] & mask;
  }
  for (std::uint64_t round = 0; round < kRounds; round += 2) {
    const std::uint64_t counter = static_cast<std::uint64_t>(epoch) * kRounds + round;
    const auto of_low = philox_lanes(key_, counter, low)[0];
    for (std::size_t i = 0; i < kValues; ++i) high[i] ^= of_low[i] & high_mask;
    const auto of_high = philox_lanes(key_, counter + 1, high)[0];
    for (std::size_t i = 0; i < kValues; ++i) low[i] ^= of_high[i] & mask;
  }
  for (std::size_t i = 0; i < kValues; ++i) values[i] = high[i] << low_bits_ | low[i];
}

std::int64_t Permutation::at(std::int64_t epoch, std::int64_t position) const {
  check(position >= 0 && position < size_, "a position outside its permutation");
  std::array value{static_cast<std::uint64_t>(position)};
  do {
    walk(epoch, value);
  } while (value[0] >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value[0]);
}

// Values that have left the range go on together as long as there are several.
void Permutation::fill(std::int64_t epoch, std::int64_t first,
                       std::span<std::int64_t> items) const {
  check(first >= 0 && std::ssize(items) <= size_ - first, "a position outside its permutation");
  constexpr std::size_t kFew = 2;
  const auto end = static_cast<std::uint64_t>(size_);
  for (; items.size() >= kAtOnce; items = items.subspan(kAtOnce), first += kAtOnce) {
    std::array<std::uint64_t, kAtOnce> values{};
    std::array<std::size_t, kAtOnce> places{};
    std::iota(values.begin(), values.end(), static_cast<std::uint64_t>(first));
    std::iota(places.begin(), places.end(), std::size_t{0});
    for (std::size_t left = kAtOnce; left > 0;) {
      if (left > kFew) {
        vectorized([&] { walk(epoch, values); });
      } else {
        for (std::size_t i = 0; i < left; ++i) {
          std::array value{values[i]};
          walk(epoch, value);
          values[i] = value[0];
        }
      }
      std::size_t outside = 0;
      for (std::size_t i = 0; i < left; ++i) {
        if (values[i] < end) {
          items[places[i]] = static_cast<std::int64_t>(values[i]);
        } else {
          values[outside] = values[i];
          places[outside++] = places[i];
        }
      }
      left = outside;
    }
  }
  for (std::int64_t& each : items) each = at(epoch, first++);
}

Mixture::Mixture(std::span<const double> weights) {
  check(!weights.empty() && weights.size() <= static_cast<std::size_t>(kBlock),
        "a mixture of no or too many sources");
  for (const double weight : weights) {
    check(std::isfinite(weight) && weight > 0, "a mixing weight is not positive");
  }
  turns_ = turns_by_weight(weights);
  if (weights.size() == 1) return;

  // Next is the source whose next turn has the earliest middle, (2 t + 1) / (2 turns): compared as
  // fractions in integers, so the same everywhere; ties go to the lower source.
  struct Next {
    std::int64_t source, turn;
  };
  const auto later = [&](const Next& a, const Next& b) {
    const std::int64_t left = (2 * a.turn + 1) * turns(b.source);
    const std::int64_t right = (2 * b.turn + 1) * turns(a.source);
    return left != right ? left > right : a.source > b.source;
  };
  std::priority_queue<Next, std::vector<Next>, decltype(later)> queue(later);
  for (std::size_t k = 0; k < turns_.size(); ++k) queue.push({static_cast<std::int64_t>(k), 0});
  source_.reserve(kBlock);
  rank_.reserve(kBlock);
  while (!queue.empty()) {
    const Next next = queue.top();
    queue.pop();
    source_.push_back(static_cast<std::uint16_t>(next.source));
    rank_.push_back(static_cast<std::uint16_t>(next.turn));
    if (next.turn + 1 < turns(next.source)) queue.push({next.source, next.turn + 1});
  }
}

Mixture::Turn Mixture::at(std::int64_t ordinal) const {
  if (source_.empty()) return {0, ordinal};
  const std::int64_t block = ordinal / kBlock;
  const auto place = static_cast<std::size_t>(ordinal % kBlock);
  return {source_[place], block * turns(source_[place]) + rank_[place]};
}

Sampler::Sampler(std::uint64_t seed, std::span<const std::int64_t> sizes,
                 std::span<const double> weights)
    : mixture_(weights) {
  check(sizes.size() == weights.size(), "one weight a source");
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    order_.emplace_back(stream_key(seed, "data.order." + std::to_string(k)), sizes[k]);
  }
}

SampleRef Sampler::at(std::int64_t ordinal) const {
  check(ordinal >= 0, "a negative ordinal");
  const Mixture::Turn turn = mixture_.at(ordinal);
  const Permutation& order = order_[static_cast<std::size_t>(turn.source)];
  const std::int64_t epoch = turn.position / order.size();
  return {turn.source, epoch, order.at(epoch, turn.position % order.size()), ordinal};
}

std::vector<IndexRange> microbatches_of(IndexRange range, std::int64_t micro_batch_size) {
  check(micro_batch_size >= 1, "a micro-batch size below one");
  std::vector<IndexRange> ranges;
  for (std::int64_t done = 0; done < range.count; done += micro_batch_size) {
    ranges.push_back({range.first + done, std::min(micro_batch_size, range.count - done)});
  }
  return ranges;
}

}  // namespace troika
