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

// Whether it holds on any member.
bool any(const Group& group, bool own, Seconds timeout) {
  const at::Tensor flag = at::full({1}, own ? 1 : 0, at::kInt);
  group.all_reduce(flag, ReduceOp::kMax, {"any", Deadline::in(timeout)}).wait();
  return flag.item<int>() != 0;
}

constexpr Seconds kWarmUp(0.1);

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
  std::vector<Seconds> times;
  const auto start = Clock::now();
  // The first tens of milliseconds are slower. All members go on until all have had enough.
  do {
    times.clear();
    for (int i = 0; i < repetitions; ++i) {
      const auto begin = Clock::now();
      group.all_reduce(tensor, ReduceOp::kSum, {"measure", Deadline::in(timeout)}).wait();
      times.push_back(Clock::now() - begin);
    }
  } while (any(group, Seconds(Clock::now() - start) < kWarmUp, timeout));
  check_result(group, tensor, timeout);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return {bytes, *middle, all_reduce_bus_bandwidth(bytes, *middle, group.size())};
}

}  // namespace troika
