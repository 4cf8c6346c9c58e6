// Data parallelism for a torch::nn::Module of the user's own, without a base class. Every rank has
// the whole module and trains it on its own data; gradients are averaged over the ranks while the
// backward pass goes on, so that every rank's optimiser takes the same step.
//
//   Net net;                                                   // any module holder or shared_ptr
//   troika::DataParallel model(net, troika::Session::from_environment());
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   ... optimizer.zero_grad();  loss(model(input), target).backward();  optimizer.step();
//
// docs/own-module.md is the guide: what is averaged, what is an error, and what each option does.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/nn/named_unit.h>
#include <troika/parallel/data_parallel/bucket_hook.h>
#include <troika/param/bucket_sizes.h>
#include <troika/session/session.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troika {

struct DataParallelOptions {
  BucketSizes buckets = {};
  // A parameter that gets no gradient in a backward pass: an error that names it; or, at the price
  // of one more small collective a step, it counts as zero where it is not used, and keeps no
  // gradient where no rank has used it.
  enum class Unused { kRefuse, kAllow } unused = Unused::kRefuse;
  // Whether to look at parameters for values that differ between ranks in a pass that is averaged,
  // in each pass at another part of them. Writes that autograd counts are compared all the same.
  bool check_values = true;
  // Instead of the average; null: none.
  std::shared_ptr<BucketHook> hook = {};
  // ZeRO (docs/zero.md): 1, the optimiser's state is cut over the ranks; 2, gradients, too. The
  // optimiser is a ZeroRedundancyOptimizer (zero_redundancy_optimizer.h), and there is no hook. For
  // 3 name the module's units: ModulePipeline (parallel/pipeline/module_pipeline.h).
  int zero_stage = 0;
};

namespace detail {

template <class T>
inline constexpr bool kIsVector = false;
template <class T, class Allocator>
inline constexpr bool kIsVector<std::vector<T, Allocator>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// Calls `act` with each tensor in what a forward() returns; in other types there are none.
template <class Output, class Act>
void each_tensor(const Output& output, const Act& act) {
  if constexpr (std::is_same_v<Output, at::Tensor>) {
    act(output);
  } else if constexpr (requires { std::tuple_size<Output>::value; }) {
    std::apply([&](const auto&... each) { (each_tensor(each, act), ...); }, output);
  } else if constexpr (kIsVector<Output>) {
    for (const auto& each : output) each_tensor(each, act);
  } else if constexpr (kIsOptional<Output>) {
    if (output) each_tensor(*output, act);
  }
}

class OptimizerAccess;

// What a ZeroRedundancyOptimizer has of its model, which may have moved.
class UpdateAccess {
 public:
  explicit UpdateAccess(std::shared_ptr<OptimizerAccess> access) : access_(std::move(access)) {}
  void begin_step() const;
  void end_step() const;
  void zero_grad() const;
  [[nodiscard]] double clip_grad_norm(double max_norm) const;
  // Names the shards that this rank updates: its rank, and a digest of how parameters are cut.
  // Empty at stage 0.
  [[nodiscard]] std::string describe_shards() const;
  // Throws UsageError unless `saved`, from an optimiser's file, names the same; null: it names
  // none.
  void check_saved_shards(const std::string* saved) const;

 private:
  std::shared_ptr<OptimizerAccess> access_;
};

}  // namespace detail

// This rank's copy of a module, and what keeps it equal to the others'. DataParallel is the same
// with the module's type.
//
// Not thread safe: forward, backward and the optimiser run in one thread. Errors of a backward pass
// come out of backward(), before any parameter has changed.
class Replica {
 public:
  // Collective: compares the modules of all ranks, and gives all of them the parameters and buffers
  // of rank 0. Throws UsageError on every rank, naming the parameter and the ranks that differ; and
  // naming a parameter or buffer that is not a dense tensor in host memory with an address for each
  // element, or a parameter of a dtype that cannot be averaged, or that another Replica has. The
  // session's group carries everything but for SyncBatchNorm, which gets one of its own, once a
  // session, where it can make groups.
  Replica(std::shared_ptr<torch::nn::Module> module, Session session,
          DataParallelOptions options = {});
  Replica(Replica&&) noexcept;
  Replica& operator=(Replica&&) noexcept;
  // The module stays as it is, with the gradients that it has.
  ~Replica();

  // While it lives, backward passes add up gradients on this rank alone; the first one after it
  // averages all of them. Every rank has to do so for the same steps.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(Replica& replica);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Replica& replica_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // The next average weighs this rank by `count`: the number of samples (or tokens) that its mean
  // loss was taken over. To be called before backward(), on every rank, with any number of samples
  // on each, zero among them. It holds for one average; without it every rank weighs the same.
  // Where all ranks say zero, backward() throws UsageError on all of them.
  void weigh(double count);

  // For ranks with fewer batches than others: after its last one, a rank calls join() and takes
  // part in what the others do, without any weight, until all ranks are here. After each of their
  // steps `step` is called: with the optimiser's step, all ranks go on having the same parameters
  // and the same state of the optimiser. Where a rank gives none, all parameters and buffers are
  // taken at the end from a rank that had batches to the last. Throws UsageError if the module
  // synchronises batch-norm, whose forward passes need every rank, and without `step` with ZeRO,
  // whose steps do.
  void join(const std::function<void()>& step = {});

  // Collective: gives all ranks the parameters and buffers of `root`.
  void broadcast_from(int root);

  // Lets go of the module, so that another one can be made of it: once parameters were frozen, set
  // to be trained, or replaced. The module stays as it is, with the gradients that it has; the
  // optimiser is to be made again, too. What is left can be assigned to; every other call throws
  // UsageError.
  void unwrap();

  // Seeds LibTorch's generators from `seed` and this rank, so that each rank draws numbers of its
  // own, and the same ones in each run: dropout masks above all. Call it once the module is made
  // and wrapped; a seed that all ranks share gives initial values, and would give the same masks.
  void seed_by_rank(std::uint64_t seed) const;

  [[nodiscard]] const Session& session() const;
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& base_module() const;
  // After the first average they follow the order in which gradients become ready; with ZeRO they
  // stay in the reverse of the order in which parameters were registered.
  [[nodiscard]] int buckets() const;

  // What this rank updates: at zero_stage 0 the parameters that are trained, else shards of them,
  // flat; and what it updates of some of them (nothing of frozen ones). For
  // ZeroRedundancyOptimizer, which updates them.
  [[nodiscard]] std::vector<at::Tensor> shards() const;
  [[nodiscard]] std::vector<at::Tensor> shards_of(const std::vector<at::Tensor>& parameters) const;
  [[nodiscard]] detail::UpdateAccess update_access();
  // Of gradients, and from zero_stage 1 on of values, with buffers; what an optimiser keeps for
  // shards() comes to it. At stage 0 values have memory of their own.
  [[nodiscard]] std::int64_t memory_bytes() const;

 protected:
  // Makes the backward pass of `output` throw if a parameter was written to before it, naming the
  // parameter: of a tensor, or of those in tuples, pairs, arrays, vectors and optionals of them.
  template <class Output>
  Output watch(Output output) {
    detail::each_tensor(output, [this](const at::Tensor& tensor) { watch_tensor(tensor); });
    return output;
  }

 private:
  void watch_tensor(const at::Tensor& output);

  struct Impl;
  // Throws UsageError after unwrap(), or once it has been moved away.
  [[nodiscard]] Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

// `Module` is a torch::nn::ModuleHolder, such as TORCH_MODULE defines, or a std::shared_ptr.
template <class Module>
class DataParallel : public Replica {
 public:
  DataParallel(Module module, Session session, DataParallelOptions options = {})
      : Replica(detail::module_pointer(module), std::move(session), std::move(options)),
        module_(std::move(module)) {}

  // The module's forward().
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    return watch(std::addressof(*module_)->forward(std::forward<Inputs>(inputs)...));
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }
  [[nodiscard]] auto* operator->() { return std::addressof(*module_); }
  [[nodiscard]] const Module& module() const { return module_; }

 private:
  Module module_;
};

// Collective: rank 0 writes the module as torch::save does, and all ranks return after the file is
// there, whole; torch::load reads it. Throws StorageError on every rank if rank 0 cannot write.
void save_from_rank_0(const Replica& replica, const std::filesystem::path& path);

}  // namespace troika
