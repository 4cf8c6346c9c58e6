#include <troika/base/error.h>
#include <troika/base/random.h>
#include <troika/data/sources/table/row_order.h>

#include <algorithm>
#include <utility>

namespace troika {
namespace {

// Two neighbouring passes meet in a batch; the held-out side has one.
constexpr std::size_t kPassesKept = 2;
// Items that are computed at once. More would be for nothing where ranks have few samples in a row.
constexpr std::int64_t kAhead = Permutation::kAtOnce;

// The last of `firsts`, ascending, that is not above `value`.
std::size_t interval_of(const std::vector<std::int64_t>& firsts, std::int64_t value) {
  return static_cast<std::size_t>(std::ranges::upper_bound(firsts, value) - firsts.begin()) - 1;
}

}  // namespace

// The groups of one pass in their order, and the windows over them.
struct RowOrder::Pass {
  std::int64_t epoch = 0;
  std::vector<std::size_t> groups;         // without those that have no row
  std::vector<std::int64_t> first;         // place in the pass of each of them, and the total
  std::vector<std::int64_t> window_first;  // place in the pass of each window, and the total
  std::vector<Permutation> window;
};

RowOrder::RowOrder(std::uint64_t key, const std::vector<std::int64_t>& rows,
                   std::int64_t window_rows)
    : key_(key), window_rows_(window_rows), first_(1, 0) {
  for (const std::int64_t each : rows) first_.push_back(first_.back() + each);
  check(first_.back() > 0, "an order of no rows");
}

RowOrder::~RowOrder() = default;

std::shared_ptr<const RowOrder::Pass> RowOrder::pass(std::int64_t epoch) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& each : passes_) {
    if (each->epoch == epoch) return each;
  }
  auto made = std::make_shared<Pass>();
  made->epoch = epoch;
  const auto count = static_cast<std::int64_t>(first_.size()) - 1;
  const Permutation order(stream_key(key_, "groups"), count);
  std::int64_t position = 0;
  const auto close_window = [&] {
    const std::int64_t begin = made->window_first.back();
    const auto number = static_cast<std::uint64_t>(made->window.size());
    made->window.emplace_back(mix_bits(stream_key(key_, "rows") + number), position - begin);
    made->window_first.push_back(position);
  };
  made->window_first.push_back(0);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto group = static_cast<std::size_t>(order.at(epoch, i));
    const std::int64_t rows = first_[group + 1] - first_[group];
    if (rows == 0) continue;
    const std::int64_t in_window = position - made->window_first.back();
    if (in_window > 0 && in_window + rows > window_rows_) close_window();
    made->groups.push_back(group);
    made->first.push_back(position);
    position += rows;
  }
  close_window();
  if (passes_.size() == kPassesKept) passes_.erase(passes_.begin());
  passes_.push_back(made);
  return made;
}

SampleRef RowOrder::at(std::int64_t ordinal) const {
  check(ordinal >= 0, "a negative sample");
  const std::int64_t epoch = ordinal / rows(), position = ordinal % rows();
  const std::shared_ptr<const Pass> in = pass(epoch);
  const std::size_t window = interval_of(in->window_first, position);
  const std::int64_t begin = in->window_first[window];
  const std::int64_t item = begin + drawn(*in, window, position - begin);
  const std::size_t which = interval_of(in->first, item);
  return {0, epoch, first_[in->groups[which]] + item - in->first[which], ordinal};
}

std::int64_t RowOrder::drawn(const Pass& in, std::size_t window, std::int64_t place) const {
  const std::scoped_lock lock(mutex_);
  const bool is_same = ahead_.epoch == in.epoch && ahead_.window == window;
  const std::int64_t offset = place - ahead_.first;
  const std::int64_t known = std::ssize(ahead_.items);
  if (!is_same || offset < 0 || offset >= known) {
    const std::int64_t count = is_same && offset == known ? kAhead : 1;
    const Permutation& order = in.window[window];
    ahead_.epoch = in.epoch;
    ahead_.window = window;
    ahead_.first = place;
    ahead_.items.resize(static_cast<std::size_t>(std::min(count, order.size() - place)));
    order.fill(in.epoch, place, ahead_.items);
  }
  return ahead_.items[static_cast<std::size_t>(place - ahead_.first)];
}

std::int64_t RowOrder::window_of(std::int64_t ordinal) const {
  const std::int64_t epoch = ordinal / rows();
  const std::shared_ptr<const Pass> in = pass(epoch);
  const std::size_t window = interval_of(in->window_first, ordinal % rows());
  return epoch * rows() + in->window_first[window];
}

std::vector<std::size_t> RowOrder::next_groups(std::int64_t ordinal) const {
  const std::int64_t epoch = ordinal / rows();
  const std::size_t window = interval_of(pass(epoch)->window_first, ordinal % rows()) + 1;
  const bool is_last = window == pass(epoch)->window.size();
  const std::shared_ptr<const Pass> in = pass(is_last ? epoch + 1 : epoch);
  const std::size_t next = is_last ? 0 : window;
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < in->groups.size(); ++i) {
    const bool is_inside =
        in->first[i] >= in->window_first[next] && in->first[i] < in->window_first[next + 1];
    if (is_inside) groups.push_back(in->groups[i]);
  }
  return groups;
}

RowPosition RowOrder::position(std::int64_t index) const {
  check(index >= 0 && index < rows(), "a row that is not there");
  const std::size_t group = interval_of(first_, index);
  return {group, index - first_[group]};
}

}  // namespace troika
