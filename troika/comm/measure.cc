#include <troika/base/error.h>
#include <troika/comm/measure.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace troika {
namespace {

void check_result(const Group& group, const at::Tensor& tensor, Seconds timeout) {
  tensor.fill_(group.rank() + 1.0);
  group.all_reduce(tensor, ReduceOp::kSum, {"check", Deadline::in(timeout)}).wait();
  const double expected = group.size() * (group.size() + 1.0) / 2.0;
  check(at::all(tensor == expected).item<bool>(), "an all-reduce gave the wrong sum");
}

}  // namespace

double all_reduce_bus_bandwidth(std::int64_t bytes, Seconds time, int ranks) {
  if (time.count() <= 0) return 0;
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(bytes) / time.count();
}

AllReduceTiming time_all_reduce(const Group& group, std::int64_t bytes, int repetitions,
                                Seconds timeout) {
  const at::Tensor tensor = at::zeros({bytes / 4}, at::kFloat);
  check_result(group, tensor, timeout);
  tensor.zero_();
  const int warm_up = std::max(1, repetitions / 10);
  std::vector<Seconds> times;
  for (int i = 0; i < warm_up + repetitions; ++i) {
    const auto start = Clock::now();
    group.all_reduce(tensor, ReduceOp::kSum, {"measure", Deadline::in(timeout)}).wait();
    if (i >= warm_up) times.push_back(Clock::now() - start);
  }
  check_result(group, tensor, timeout);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return {bytes, *middle, all_reduce_bus_bandwidth(bytes, *middle, group.size())};
}

}  // namespace troika
