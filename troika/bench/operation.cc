#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/bench/operation.h>
#include <troika/device/device.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace troika {
namespace {

constexpr std::array kOperations = {
    BenchOperationFacts{BenchOperation::kAllReduce, "all_reduce", "2 (n-1)/n"},
    BenchOperationFacts{BenchOperation::kReduceScatter, "reduce_scatter", "(n-1)/n"},
    BenchOperationFacts{BenchOperation::kAllGather, "all_gather", "(n-1)/n"},
    BenchOperationFacts{BenchOperation::kAllToAll, "all_to_all", "(n-1)/n"},
    BenchOperationFacts{BenchOperation::kBroadcast, "broadcast", "1"},
    BenchOperationFacts{BenchOperation::kGather, "gather", "(n-1)/n"},
    BenchOperationFacts{BenchOperation::kScatter, "scatter", "(n-1)/n"},
    BenchOperationFacts{BenchOperation::kExchange, "exchange", "1"},
};
constexpr int kRoot = 0;
constexpr double kTolerance = 1e-5;  // of an element

// Element i of what rank r gives is pattern(i) * (r + 1): small whole numbers, so that sums are
// exact, and no two neighbours or ranks alike.
at::Tensor pattern(std::int64_t count) {
  return at::arange(count, at::kFloat).remainder_(13).add_(1);
}

class TensorBenchmark : public OperationBenchmark {
 public:
  TensorBenchmark(BenchOperation operation, Group group, std::int64_t bytes, BenchMemory memory,
                  at::Device device)
      : operation_(operation),
        memory_(memory),
        device_(device),
        group_(std::move(group)),
        part_((bytes + bytes_of_round() - 1) / bytes_of_round()),
        pattern_(pattern(part_ * parts())) {}

  [[nodiscard]] std::int64_t bytes() const override { return part_ * bytes_of_round(); }

  void verify(int times) const override {
    if (is_right(times)) return;
    throw InternalError(std::string(facts_of(operation_).name) + " of " + std::to_string(bytes()) +
                        " bytes on engine " + std::string(group_.engine_name()) +
                        " gave a wrong result on rank " + std::to_string(group_.rank()));
  }

 protected:
  [[nodiscard]] float weight(int rank) const { return static_cast<float>(rank + 1); }
  [[nodiscard]] double sum_of_weights() const {
    return group_.size() * (group_.size() + 1.0) / 2.0;
  }
  [[nodiscard]] bool is_root() const { return group_.rank() == kRoot; }
  // The parts that all ranks give, or get, one behind the other: `of(q)` for rank q.
  template <class Of>
  [[nodiscard]] at::Tensor each(const Of& of) const {
    std::vector<at::Tensor> all;
    for (int q = 0; q < group_.size(); ++q) all.push_back(of(q));
    return at::cat(all);
  }
  [[nodiscard]] at::Tensor first_part() const { return pattern_.narrow(0, 0, part_); }
  [[nodiscard]] std::vector<std::int64_t> equal_counts() const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(group_.size()), part_);
  }
  // Copies `values` to `tensor`, which is made the first time.
  void set(at::Tensor& tensor, const at::Tensor& values) {
    if (!tensor.defined()) {
      tensor =
          memory_ == BenchMemory::kOwn
              ? at::empty_like(values, values.options().device(device_))
              : group_.allocate(values.nbytes(), device_).view(at::kFloat).view(values.sizes());
    }
    tensor.copy_(values);
  }
  [[nodiscard]] virtual bool is_right(int times) const {
    const at::Tensor right = expected(times);
    return !right.defined() || at::allclose(to_host(output_), right, kTolerance, 0);
  }
  // What output_ must hold; undefined where nothing comes out.
  [[nodiscard]] virtual at::Tensor expected(int /*times*/) const { return {}; }

  BenchOperation operation_;
  BenchMemory memory_;
  at::Device device_;
  Group group_;
  std::int64_t part_;   // elements
  at::Tensor pattern_;  // of the larger tensor
  at::Tensor input_, output_;

 private:
  // Where the larger tensor falls into a part a rank.
  [[nodiscard]] std::int64_t parts() const {
    const bool whole = operation_ == BenchOperation::kAllReduce ||
                       operation_ == BenchOperation::kBroadcast ||
                       operation_ == BenchOperation::kExchange;
    return whole ? 1 : group_.size();
  }
  [[nodiscard]] std::int64_t bytes_of_round() const {
    return parts() * static_cast<std::int64_t>(sizeof(float));
  }
};

at::Tensor unknown(std::int64_t count) {
  return at::full({count}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
}

// With loops of its own, as the peer in C has: LibTorch's operators between two repeats would throw
// what is timed out of the caches.
class AllReduceBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    if (!device_.is_cpu()) return set(output_, pattern_ * weight(group_.rank()));
    if (!output_.defined()) set(output_, pattern_);
    fill(values(output_), weight(group_.rank()));
  }
  Work start(const Call& call) override { return group_.all_reduce(output_, ReduceOp::kSum, call); }
  [[nodiscard]] bool is_right(int times) const override {
    const auto scale = static_cast<float>(factor(times));
    const at::Tensor output = to_host(output_);
    const std::span<const float> ones = values(pattern_), all = values(output);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float right = ones[i] * scale;
      if (!(std::fabs(all[i] - right) <= kTolerance * right)) return false;
    }
    return true;
  }
  // 13 n^2 n^times below 1e38.
  [[nodiscard]] int most_times() const override {
    return std::max(1, static_cast<int>(80 / std::log(group_.size())));
  }

 private:
  static std::span<float> values(const at::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
  }
  void fill(std::span<float> tensor, float scale) const {
    const std::span<const float> ones = values(pattern_);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = ones[i] * scale;
  }
  [[nodiscard]] double factor(int times) const {
    return sum_of_weights() * std::pow(group_.size(), times - 1);
  }
};

class ReduceScatterBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    set(input_, pattern_ * weight(group_.rank()));
    set(output_, unknown(part_));
  }
  Work start(const Call& call) override {
    return group_.reduce_scatter(output_, input_, ReduceOp::kSum, call);
  }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override {
    return pattern_.narrow(0, group_.rank() * part_, part_) * sum_of_weights();
  }
};

// All gather, and gather to one.
class GatherBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    set(input_, first_part() * weight(group_.rank()));
    if (gets()) set(output_, unknown(part_ * group_.size()));
  }
  Work start(const Call& call) override {
    if (operation_ == BenchOperation::kAllGather) return group_.all_gather(output_, input_, call);
    return group_.gather(gets() ? output_.view({group_.size(), part_}) : output_, input_, kRoot,
                         call);
  }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override {
    if (!gets()) return {};
    return each([&](int q) { return first_part() * weight(q); });
  }

 private:
  [[nodiscard]] bool gets() const { return operation_ == BenchOperation::kAllGather || is_root(); }
};

class AllToAllBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    set(input_, each([&](int to) { return first_part() * weight(group_.rank()) + to; }));
    set(output_, unknown(part_ * group_.size()));
  }
  Work start(const Call& call) override {
    const std::vector<std::int64_t> counts = equal_counts();
    return group_.all_to_all(output_, counts, input_, counts, call);
  }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override {
    return each([&](int from) { return first_part() * weight(from) + group_.rank(); });
  }
};

class BroadcastBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override { set(output_, is_root() ? pattern_.clone() : unknown(part_)); }
  Work start(const Call& call) override { return group_.broadcast(output_, kRoot, call); }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override { return pattern_; }
};

class ScatterBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    if (is_root()) {
      set(input_, each([&](int to) { return first_part() + to; }).view({group_.size(), part_}));
    }
    set(output_, unknown(part_));
  }
  Work start(const Call& call) override { return group_.scatter(output_, input_, kRoot, call); }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override {
    return first_part() + group_.rank();
  }
};

// Every rank sends to the next one and receives from the one before.
class ExchangeBenchmark final : public TensorBenchmark {
 public:
  using TensorBenchmark::TensorBenchmark;
  void prepare() override {
    set(input_, pattern_ * weight(group_.rank()));
    set(output_, unknown(part_));
  }
  Work start(const Call& call) override {
    const Transfer transfers[] = {{Transfer::Direction::kSend, neighbour(1), input_},
                                  {Transfer::Direction::kReceive, neighbour(-1), output_}};
    return group_.exchange(transfers, call);
  }
  [[nodiscard]] at::Tensor expected(int /*times*/) const override {
    return pattern_ * weight(neighbour(-1));
  }

 private:
  [[nodiscard]] int neighbour(int by) const {
    return (group_.rank() + by + group_.size()) % group_.size();
  }
};

}  // namespace

std::span<const BenchOperationFacts> bench_operations() {
  return kOperations;
}

const BenchOperationFacts& facts_of(BenchOperation operation) {
  return kOperations.at(static_cast<std::size_t>(operation));
}

double bus_factor(BenchOperation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case BenchOperation::kAllReduce:
      return 2 * others;
    case BenchOperation::kBroadcast:
    case BenchOperation::kExchange:
      return 1;
    default:
      return others;
  }
}

std::unique_ptr<OperationBenchmark> OperationBenchmark::make(BenchOperation operation,
                                                             const Group& group, std::int64_t bytes,
                                                             BenchMemory memory,
                                                             at::Device device) {
  switch (operation) {
    case BenchOperation::kAllReduce:
      return std::make_unique<AllReduceBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kReduceScatter:
      return std::make_unique<ReduceScatterBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kAllGather:
    case BenchOperation::kGather:
      return std::make_unique<GatherBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kAllToAll:
      return std::make_unique<AllToAllBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kBroadcast:
      return std::make_unique<BroadcastBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kScatter:
      return std::make_unique<ScatterBenchmark>(operation, group, bytes, memory, device);
    case BenchOperation::kExchange:
      return std::make_unique<ExchangeBenchmark>(operation, group, bytes, memory, device);
  }
  throw InternalError("an unknown operation");
}

}  // namespace troika
