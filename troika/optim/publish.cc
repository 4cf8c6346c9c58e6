#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/base/vectorize.h>
#include <troika/optim/publish.h>

#include <type_traits>

namespace troika {
namespace {

template <typename V, typename T>
void round_to(const LocalShard& shard, std::int64_t offset, std::int64_t count) {
  const T* __restrict from = shard.master.const_data_ptr<T>() + offset;
  V* __restrict to = shard.working_weight.mutable_data_ptr<V>() + offset;
  vectorized([=] {
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<V, T>) {
        to[i] = from[i];
      } else {
        to[i] = static_cast<V>(static_cast<float>(from[i]));
      }
    }
  });
}

}  // namespace

template <typename T>
void publish_chunk(const LocalShard& shard, std::int64_t offset, std::int64_t count) {
  if (shard.working_weight.const_data_ptr() == shard.master.const_data_ptr()) return;
  switch (shard.working_weight.scalar_type()) {
    case at::kBFloat16:
      return round_to<at::BFloat16, T>(shard, offset, count);
    case at::kHalf:
      return round_to<at::Half, T>(shard, offset, count);
    default:
      check(shard.working_weight.scalar_type() == shard.master.scalar_type(),
            "working weights that are neither bf16 nor fp16");
      return round_to<T, T>(shard, offset, count);
  }
}

template void publish_chunk<float>(const LocalShard&, std::int64_t, std::int64_t);
template void publish_chunk<double>(const LocalShard&, std::int64_t, std::int64_t);

}  // namespace troika
