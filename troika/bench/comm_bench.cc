#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <troika/base/error.h>
#include <troika/base/text.h>
#include <troika/base/units.h>
#include <troika/bench/comm_bench.h>
#include <troika/device/device.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

namespace troika {
namespace {

constexpr Seconds kRepeat{0.02};  // long enough that starting together does not show
constexpr std::int64_t kElementBytes = sizeof(float);
constexpr int kFewestWarmUps = 2;
constexpr int kFewestRepeats = 5;
constexpr int kMostRepeats = 10000;

class Measurement {
 public:
  Measurement(const Group& group, BenchOperation operation, std::int64_t bytes,
              const CommBenchOptions& options)
      : group_(group),
        operation_(operation),
        options_(options),
        benchmark_(
            OperationBenchmark::make(operation, group, bytes, options.memory, options.device)) {}

  CommTiming run() {
    const Seconds once = warm_up();
    const int times = within(kRepeat / once, 1, benchmark_->most_times());
    const int repeats = within(options_.budget / (once * times), kFewestRepeats, kMostRepeats);
    std::vector<Seconds> own;
    for (int i = 0; i < repeats; ++i) own.push_back(repeat(times));
    return summary(slowest_rank(own), times);
  }

 private:
  // Runs until what a process does the first times no longer shows, and returns what one operation
  // takes then.
  Seconds warm_up() {
    const int times = std::min(10, benchmark_->most_times());
    Seconds once(0), spent(0);
    for (int i = 0; i < kFewestWarmUps || spent < options_.budget / 3; ++i) {
      once = slowest_rank({repeat(times)}).front();
      spent += once * times;
    }
    return once;
  }
  [[nodiscard]] Call call(std::string_view label) const {
    return {label, Deadline::in(options_.timeout)};
  }
  static int within(double value, int low, int high) {
    return static_cast<int>(std::clamp(value, static_cast<double>(low), static_cast<double>(high)));
  }

  // The time of one of `times` operations.
  Seconds repeat(int times) {
    benchmark_->prepare();
    await_device();
    group_.barrier(call("together")).wait();
    const Call each{"bench", Deadline::in(options_.timeout * times)};
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) benchmark_->start(each).wait();
    await_device();
    const Seconds time = Clock::now() - start;
    // Keeps the check of results off a core that another rank still needs for what is timed.
    group_.barrier(call("all have done")).wait();
    benchmark_->verify(times);
    return time / times;
  }

  // What a device was given goes on by itself.
  void await_device() const {
    DeviceEvent::record(options_.device)
        .wait(Deadline::in(options_.timeout), "the end of a repeat");
  }

  // Equal on all ranks, so that all of them repeat equally often.
  [[nodiscard]] std::vector<Seconds> slowest_rank(const std::vector<Seconds>& own) const {
    std::vector<double> seconds;
    for (const Seconds one : own) seconds.push_back(one.count());
    const at::Tensor all = at::tensor(seconds, at::kDouble);
    group_.all_reduce(all, ReduceOp::kMax, call("times")).wait();
    std::vector<Seconds> slowest;
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      slowest.emplace_back(all.const_data_ptr<double>()[i]);
    }
    return slowest;
  }

  [[nodiscard]] CommTiming summary(std::vector<Seconds> times, int operations) const {
    std::sort(times.begin(), times.end());
    CommTiming timing;
    timing.engine = group_.engine_name(options_.device);
    timing.device = name_of(options_.device);
    timing.operation = facts_of(operation_).name;
    timing.bytes = benchmark_->bytes();
    timing.ranks = group_.size();
    timing.time = times[times.size() / 2];
    timing.fastest = times.front();
    timing.slowest = times.back();
    timing.repeats = static_cast<int>(times.size());
    timing.operations_per_repeat = operations;
    timing.algorithm_bandwidth = static_cast<double>(timing.bytes) / timing.time.count();
    timing.bus_bandwidth = timing.algorithm_bandwidth * bus_factor(operation_, timing.ranks);
    return timing;
  }

  const Group& group_;
  BenchOperation operation_;
  const CommBenchOptions& options_;
  std::unique_ptr<OperationBenchmark> benchmark_;
};

std::int64_t parse_size(std::string_view text) {
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  if (!bytes) {
    throw UsageError("--sizes: " + quote(text) + " is no size",
                     "a size is a number of bytes, or of K, M or G: --sizes 4,4K,64M, or 4:64M");
  }
  if (*bytes % kElementBytes != 0) {
    throw UsageError("--sizes: " + quote(text) + " is no whole number of fp32 values",
                     "give a multiple of " + std::to_string(kElementBytes) + " bytes");
  }
  return *bytes;
}

}  // namespace

std::vector<CommTiming> bench_comm(const Group& group, const CommBenchOptions& options) {
  const c10::InferenceMode no_autograd;
  check(group.size() > 1, "a group of one has nothing to measure");
  std::vector<CommTiming> timings;
  for (const BenchOperation operation : options.operations) {
    for (const std::int64_t bytes : options.sizes) {
      timings.push_back(Measurement(group, operation, bytes, options).run());
    }
  }
  return timings;
}

std::vector<std::int64_t> parse_sizes(const std::string& text) {
  std::vector<std::int64_t> sizes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t colon = word.find(':');
    const std::int64_t first = parse_size(std::string_view(word).substr(0, colon));
    const std::int64_t last =
        colon == std::string::npos ? first : parse_size(std::string_view(word).substr(colon + 1));
    if (last < first) {
      throw UsageError("--sizes: " + quote(word) + " is backwards",
                       "the smaller size comes first: --sizes 4:64M");
    }
    for (std::int64_t size = first; size <= last; size *= 4) sizes.push_back(size);
  }
  if (sizes.empty()) throw UsageError("--sizes names no size", "for example --sizes 4,4K,64M");
  return sizes;
}

}  // namespace troika
