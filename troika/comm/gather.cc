#include <ATen/ATen.h>
#include <troika/comm/gather.h>

#include <numeric>

namespace troika {

GatheredElements gather_elements(const Group& group, const at::Tensor& own, const Call& call) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()));
  const at::Tensor sizes = at::from_blob(counts.data(), {group.size()}, at::kLong);
  group.all_gather(sizes, at::full({1}, own.numel(), at::kLong), call).wait();
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const at::Tensor all = at::empty({total}, own.scalar_type());
  if (total > 0) group.all_gather(all, own.contiguous().view({-1}), call, counts).wait();
  return {all, std::move(counts)};
}

}  // namespace troika
