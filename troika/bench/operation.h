// The collectives that `troika bench comm` measures: what each is given, what must come out, and
// how its time becomes a bandwidth.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/comm/group.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troika {

enum class BenchOperation {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kGather,
  kScatter,
  kExchange,
};

// The facts of an operation. With S the bytes of the larger of a rank's two tensors and n ranks,
// the algorithm bandwidth is S / time. The bus bandwidth is that times a factor (nccl-tests,
// doc/PERFORMANCE.md): what the busiest rank has to send or receive at least. So it compares with
// the hardware's whatever n.
struct BenchOperationFacts {
  BenchOperation operation;
  std::string_view name;    // "all_reduce"
  std::string_view factor;  // "2 (n-1)/n"
};

[[nodiscard]] std::span<const BenchOperationFacts> bench_operations();
[[nodiscard]] const BenchOperationFacts& facts_of(BenchOperation operation);
[[nodiscard]] double bus_factor(BenchOperation operation, int ranks);

// The memory in which the tensors lie: that of Group::allocate, as for parameters and gradients, or
// the program's own.
enum class BenchMemory { kGroup, kOwn };

// One operation on its own fp32 tensors.
class OperationBenchmark {
 public:
  virtual ~OperationBenchmark() = default;

  // Makes a benchmark for about `bytes` of the larger tensor: rounded up to elements, and to equal
  // parts. The tensors lie on `device`.
  [[nodiscard]] static std::unique_ptr<OperationBenchmark> make(BenchOperation operation,
                                                                const Group& group,
                                                                std::int64_t bytes,
                                                                BenchMemory memory,
                                                                at::Device device = at::kCPU);

  // Returns the bytes of the larger tensor.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  // Sets the inputs anew, and the outputs to NaN.
  virtual void prepare() = 0;
  virtual Work start(const Call& call) = 0;
  // Throws InternalError naming the operation unless the output is right after it was run `times`
  // times since prepare().
  virtual void verify(int times) const = 0;
  // Returns how often it may be run after prepare() before sums leave the range of fp32.
  [[nodiscard]] virtual int most_times() const { return 1000; }
};

}  // namespace troika
