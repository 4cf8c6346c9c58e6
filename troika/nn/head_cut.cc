#include <troika/nn/head_cut.h>

#include <algorithm>

namespace troika {
namespace {

// The key and value heads that a slice of the query heads reads.
IndexRange read_by(const IndexRange& query, std::int64_t group) {
  const std::int64_t first = query.first / group;
  return {first, (query.end() + group - 1) / group - first};
}

}  // namespace

HeadCut cut_heads(std::int64_t heads, std::int64_t kv_heads, int rank, int ranks) {
  check(kv_heads >= 1 && heads % kv_heads == 0, "key and value heads that do not divide the heads");
  check(ranks <= heads, "more tensor ranks than heads");
  const std::int64_t group = heads / kv_heads;
  const auto held_by = [&](int other) { return read_by(even_split(heads, other, ranks), group); };

  HeadCut cut;
  cut.query = even_split(heads, rank, ranks);
  cut.key_value = held_by(rank);
  for (int other = 0; other + 1 < ranks; ++other) {
    if (held_by(other).end() > held_by(other + 1).first) cut.overlapping = true;
  }
  const std::int64_t next = rank + 1 < ranks ? held_by(rank + 1).first : cut.key_value.end();
  cut.counted = std::min(cut.key_value.end(), next) - cut.key_value.first;
  for (std::int64_t head = cut.query.first; head < cut.query.end(); ++head) {
    cut.reads.push_back(head / group - cut.key_value.first);
  }
  return cut;
}

}  // namespace troika
