#include <ATen/ATen.h>
#include <troika/sync/flat_masters.h>

#include <algorithm>

namespace troika {

FlatMasters::FlatMasters(Arena& arena) : arena_(arena) {
  for (const LocalShard& shard : arena.trained_shards()) {
    begins_.push_back(size_);
    size_ += shard.count;
  }
}

IndexRange FlatMasters::own_part(IndexRange range) const {
  if (arena_.sharding().stage > 0) return range;
  const Group& data = arena_.sharding().shard;
  const IndexRange part = even_split(range.count, data.rank(), data.size());
  return {range.first + part.first, part.count};
}

template <class Visit>
void FlatMasters::for_each_part(IndexRange range, const Visit& visit) const {
  const std::int64_t last = range.first + range.count;
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    const LocalShard& shard = arena_.trained_shards()[i];
    const std::int64_t from = std::max(range.first, begins_[i]),
                       to = std::min(last, begins_[i] + shard.count);
    if (from < to) visit(shard, from - begins_[i], from - range.first, to - from);
  }
}

std::vector<BucketPart> FlatMasters::parts_of(IndexRange range) const {
  std::vector<BucketPart> parts;
  for_each_part(range,
                [&](const LocalShard& shard, std::int64_t, std::int64_t there, std::int64_t count) {
                  const ParameterSpec& spec = arena_.parameters()[shard.parameter]->spec();
                  const bool is_whole = count == spec.local_count();
                  parts.push_back({there, is_whole ? spec.local_shape() : std::vector{count}});
                });
  return parts;
}

const std::string& FlatMasters::parameter_at(std::int64_t element) const {
  const auto after = std::ranges::upper_bound(begins_, element);
  const LocalShard& shard =
      arena_.trained_shards()[static_cast<std::size_t>(after - begins_.begin()) - 1];
  return arena_.parameters()[shard.parameter]->spec().name;
}

void FlatMasters::read(IndexRange range, const at::Tensor& values) const {
  for_each_part(range, [&](const LocalShard& shard, std::int64_t here, std::int64_t there,
                           std::int64_t count) {
    values.narrow(0, there, count).copy_(shard.master.view({-1}).narrow(0, here, count));
  });
}

void FlatMasters::write(IndexRange range, const at::Tensor& values) const {
  for_each_part(range, [&](const LocalShard& shard, std::int64_t here, std::int64_t there,
                           std::int64_t count) {
    shard.master.view({-1}).narrow(0, here, count).copy_(values.narrow(0, there, count));
  });
}

void FlatMasters::read_gradients(IndexRange range, const at::Tensor& values) const {
  for_each_part(range, [&](const LocalShard& shard, std::int64_t here, std::int64_t there,
                           std::int64_t count) {
    values.narrow(0, there, count).copy_(shard.gradient.view({-1}).narrow(0, here, count));
  });
}

void FlatMasters::write_gradients(IndexRange range, const at::Tensor& values) const {
  for_each_part(range, [&](const LocalShard& shard, std::int64_t here, std::int64_t there,
                           std::int64_t count) {
    shard.gradient.view({-1}).narrow(0, here, count).copy_(values.narrow(0, there, count));
  });
}

void FlatMasters::gather(IndexRange range, const at::Tensor& values, const Call& call) const {
  if (arena_.sharding().stage > 0) return;
  const Group& data = arena_.sharding().shard;
  if (data.size() == 1) return;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < data.size(); ++rank) {
    counts.push_back(even_split(range.count, rank, data.size()).count);
  }
  const IndexRange own = even_split(range.count, data.rank(), data.size());
  data.all_gather(values, values.narrow(0, own.first, own.count), call, counts).wait();
}

at::Tensor FlatMasters::empty(std::int64_t count) const {
  return at::empty({count},
                   at::TensorOptions().dtype(arena_.types().master).device(arena_.device()));
}

}  // namespace troika
