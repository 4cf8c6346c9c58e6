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
#include <troika/param/parameter_shard.h>
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
  // The treatment of a parameter that gets no gradient in a backward pass. kRefuse throws an error
  // that names it. kAllow takes one more small collective a step. The parameter then counts as zero
  // on ranks that do not use it, and keeps no gradient where no rank has used it.
  enum class Unused { kRefuse, kAllow } unused = Unused::kRefuse;
  // True if an averaged pass also compares parameter values between ranks, in each pass another
  // part of them. Writes that autograd counts are compared in any case.
  bool check_values = true;
  // Takes the place of the average; null: none.
  std::shared_ptr<BucketHook> hook = {};
  // The stage of ZeRO (docs/zero.md): 1 shards the optimiser's state over the ranks, 2 gradients,
  // too. The optimiser is then a ZeroRedundancyOptimizer (zero_redundancy_optimizer.h), and there
  // is no hook. For stage 3 name the module's units: ModulePipeline
  // (parallel/pipeline/module_pipeline.h).
  int zero_stage = 0;
  // The treatment of a gradient that is not finite on some rank, as that of a NaN loss. kAverage
  // averages it like any other: all ranks then have it, without a word. kWarn says once which
  // parameter it was, on the rank whose it is. kStop throws NonFiniteError naming both out of
  // backward(), on every rank; a program that catches it leaves out the step. Both look at every
  // gradient once more before it is averaged. Not for a GradScaler, which looks itself.
  enum class OnNonfinite { kAverage, kWarn, kStop } on_nonfinite = OnNonfinite::kAverage;
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

// Calls `act` with each tensor in the result of a forward(); other types hold none.
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

// The access of a ZeroRedundancyOptimizer to its model, which may have moved.
class UpdateAccess {
 public:
  explicit UpdateAccess(std::shared_ptr<OptimizerAccess> access) : access_(std::move(access)) {}
  void begin_step() const;
  void end_step() const;
  // Tells that the step of an average is left out.
  void skip_step() const;
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

// The interface of an optimiser that has to know when a GradScaler leaves its step out.
class StepSkipper {
 public:
  virtual ~StepSkipper() = default;
  virtual void skip_step() = 0;
};

}  // namespace detail

// This rank's replica of a module. Keeps it equal to those of the other ranks. DataParallel adds
// the module's type. Not thread safe: forward, backward and the optimiser run in one thread. Errors
// of a backward pass come out of backward(), before any parameter has changed.
class Replica {
 public:
  // Collective: compares the modules of all ranks, and gives all of them the parameters and buffers
  // of rank 0. Throws UsageError on every rank, naming the parameter and the ranks that differ.
  // Throws UsageError naming a parameter or buffer that is not a dense tensor in host memory with
  // an address for each element. Throws it also for a parameter of a dtype that cannot be averaged,
  // or that another Replica has. The session's group carries every collective but those of
  // SyncBatchNorm. That gets a separate group, once a session, where the session can make groups.
  Replica(std::shared_ptr<torch::nn::Module> module, Session session,
          DataParallelOptions options = {});
  Replica(Replica&&) noexcept;
  Replica& operator=(Replica&&) noexcept;
  // Leaves the module as it is, with the gradients that it has.
  ~Replica();

  // Makes backward passes add up gradients on this rank alone during its lifetime. The first pass
  // after it averages all of them. Use it on every rank for the same steps.
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

  // Weighs this rank by `count` in the next average: the number of samples (or tokens) that its
  // mean loss was taken over. Call before backward(), on every rank, with any number of samples on
  // each, zero among them. It holds for one average; without it every rank weighs the same. If all
  // ranks say zero, backward() throws UsageError on all of them.
  void weigh(double count);

  // Takes part in the other ranks' collectives, without any weight, until all ranks have joined.
  // Call on a rank with fewer batches than others, after its last one. `step` is called after each
  // of the others' steps. With the optimiser's step, all ranks keep the same parameters and the
  // same state of the optimiser. If a rank gives none, all parameters and buffers are taken at the
  // end from a rank that had batches to the last. Throws UsageError if the module synchronises
  // batch-norm, whose forward passes need every rank. Throws UsageError without `step` with ZeRO,
  // whose steps need every rank, and with a GradScaler, whose steps do.
  void join(const std::function<void()>& step = {});

  // Collective: gives all ranks the parameters and buffers of `root`.
  void broadcast_from(int root);

  // Tells that the same values have been written to the parameters of all ranks.
  void values_written();

  // Releases the module, so that another Replica can be made of it once parameters were frozen, set
  // to be trained, or replaced. The module stays as it is, with the gradients that it has. Make the
  // optimiser again, too. This object can then be assigned to; every other call throws UsageError.
  void unwrap();

  // Seeds LibTorch's generators from `seed` and this rank. Each rank then draws different numbers,
  // for dropout masks above all, and the same ones in each run. Call it once the module is made and
  // wrapped. A seed that all ranks share is for initial values: it would give the same masks.
  void seed_by_rank(std::uint64_t seed) const;

  [[nodiscard]] const Session& session() const;
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& base_module() const;
  // Returns the number of buckets. After the first average they follow the order in which gradients
  // become ready. With ZeRO they stay in the reverse of the order in which parameters were
  // registered.
  [[nodiscard]] int buckets() const;

  // Return the tensors that this rank updates, of all or of some parameters. At zero_stage 0 these
  // are the trained parameters, else flat shards of them. Frozen parameters have none.
  // ZeroRedundancyOptimizer updates them.
  [[nodiscard]] std::vector<at::Tensor> shards() const;
  [[nodiscard]] std::vector<at::Tensor> shards_of(const std::vector<at::Tensor>& parameters) const;
  // Returns shards() with the names of the parameters that they are of. Throws UsageError naming a
  // parameter that ZeRO has cut and that is not row-major.
  [[nodiscard]] std::vector<ParameterShard> named_shards() const;
  // Returns the stage of ZeRO.
  [[nodiscard]] int zero_stage() const;
  [[nodiscard]] detail::UpdateAccess update_access();
  // Tells that steps are collective at any stage, as those of a GradScaler are: join() then needs
  // one.
  void expect_collective_steps();
  // Returns the bytes of gradients, and from zero_stage 1 on of values, with buffers. The
  // optimiser's state for shards() is not included. At stage 0 values have separate memory.
  [[nodiscard]] std::int64_t memory_bytes() const;

 protected:
  // Makes the backward pass of `output` throw if a parameter was written to before it, naming the
  // parameter. `output` is a tensor, or tuples, pairs, arrays, vectors and optionals of them.
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

// A Replica with the module's type. `Module` is a torch::nn::ModuleHolder, such as TORCH_MODULE
// defines, or a std::shared_ptr.
template <class Module>
class DataParallel : public Replica {
 public:
  DataParallel(Module module, Session session, DataParallelOptions options = {})
      : Replica(detail::module_pointer(module), std::move(session), std::move(options)),
        module_(std::move(module)) {}

  // Runs the module's forward().
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

// Collective: rank 0 writes the module as torch::save does, for torch::load to read. All ranks
// return once the file is complete. Throws StorageError on every rank if rank 0 cannot write.
void save_from_rank_0(const Replica& replica, const std::filesystem::path& path);

}  // namespace troika
