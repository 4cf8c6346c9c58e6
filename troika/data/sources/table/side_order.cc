#include <troika/base/random.h>
#include <troika/data/sources/table/side_order.h>

#include <string>
#include <utility>

namespace troika {

SideOrder::Rows SideOrder::rows_of(std::uint64_t key, const std::vector<std::int64_t>& rows,
                                   std::int64_t window_rows) {
  Rows own;
  std::vector<std::int64_t> counts;
  for (std::size_t group = 0; group < rows.size(); ++group) {
    if (rows[group] == 0) continue;
    own.groups.push_back(group);
    counts.push_back(rows[group]);
  }
  own.order = std::make_unique<RowOrder>(key, std::move(counts), window_rows);
  return own;
}

SideOrder::SideOrder(std::uint64_t key, const std::vector<std::int64_t>& rows,
                     std::int64_t window_rows) {
  Rows all;
  for (std::size_t group = 0; group < rows.size(); ++group) all.groups.push_back(group);
  all.order = std::make_unique<RowOrder>(key, rows, window_rows);
  rows_.push_back(std::move(all));
}

SideOrder::SideOrder(std::uint64_t key,
                     const std::vector<std::vector<std::int64_t>>& rows_of_classes,
                     std::int64_t window_rows) {
  const auto classes = std::ssize(rows_of_classes);
  for (std::size_t i = 0; i < rows_of_classes.size(); ++i) {
    rows_.push_back(rows_of(stream_key(key, "class " + std::to_string(i)), rows_of_classes[i],
                            window_rows / classes));
  }
  turns_.emplace(std::vector<double>(rows_of_classes.size(), 1.0));
}

SampleRef SideOrder::at(std::int64_t ordinal) const {
  if (!turns_) return rows_.front().order->at(ordinal);
  const Mixture::Turn turn = turns_->at(ordinal);
  SampleRef sample = rows_[static_cast<std::size_t>(turn.source)].order->at(turn.position);
  sample.source = turn.source;
  sample.ordinal = ordinal;
  return sample;
}

RowPosition SideOrder::position(const SampleRef& sample) const {
  const Rows& rows = rows_[static_cast<std::size_t>(sample.source)];
  RowPosition position = rows.order->position(sample.index);
  position.group = rows.groups[position.group];
  return position;
}

std::int64_t SideOrder::window_of(const SampleRef& sample) const {
  return turns_ ? 0 : rows_.front().order->window_of(sample.ordinal);
}

std::vector<std::size_t> SideOrder::next_groups(const SampleRef& sample) const {
  if (turns_) return {};
  return rows_.front().order->next_groups(sample.ordinal);
}

}  // namespace troika
