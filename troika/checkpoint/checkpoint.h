// Checkpoints of a program of the user's own: a module that DataParallel or ModulePipeline trains,
// optimisers of torch::optim, a GradScaler, a sampler's place, and numbers. They have the format of
// a run's (docs/checkpoints.md), and ranks of any number, with any stage of ZeRO, go on from them.
//
//   troika::Checkpoint checkpoint("checkpoints", session);
//   checkpoint.add(model).add(optimizer).add(sampler);
//   std::int64_t step = checkpoint.load().value_or(0);     // goes on, or begins
//   while (step < kSteps) {
//     ...
//     if (++step % 100 == 0) checkpoint.save(step);        // copies, and writes in the background
//   }
//   checkpoint.wait();
#pragma once

#include <troika/base/time.h>
#include <troika/session/session.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace troika {

class DistributedSampler;
class GradScaler;
class ModulePipeline;
class Replica;

struct CheckpointSettings {
  int keep = 3;           // the newest that stay
  Seconds timeout{1800};  // for ranks that wait for each other's files
  // Encrypts them with the key in "env:NAME" or "file:/PATH": 64 hexadecimal digits, which every
  // rank has. "none": they are plain.
  std::string key = "none";
};

// All of add(), load(), save() and wait() are collective: every rank of the session makes the same
// calls in the same order. Not thread safe.
class Checkpoint {
 public:
  // Checkpoints lie in `folder`, which all ranks see. Throws UsageError for a `keep` below 1, and
  // where the key cannot be read.
  Checkpoint(std::filesystem::path folder, const Session& session,
             const CheckpointSettings& settings = {});
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  // Waits for what is being written; where an exception is under way, for ten seconds at most.
  ~Checkpoint();

  // Add what is saved and loaded; it must outlive this. Models are added before their optimisers.
  // With several of a kind each has a name, the same in each run. An optimiser may be a
  // ZeroRedundancyOptimizer. Throw UsageError: a name twice, an optimiser of another model, or one
  // whose state is not known.
  Checkpoint& add(Replica& model, const std::string& name = "");
  Checkpoint& add(ModulePipeline& model, const std::string& name = "");
  Checkpoint& add(torch::optim::Optimizer& optimizer, const std::string& name = "");
  Checkpoint& add(GradScaler& scaler, const std::string& name = "");
  Checkpoint& add(DistributedSampler& sampler, const std::string& name = "");

  // Set a number of the user's, the same on all ranks, for the next save().
  void set(const std::string& name, std::int64_t value);
  void set(const std::string& name, double value);
  // Return a number that was set, or loaded. Throw DataError where there is none of this name and
  // type.
  [[nodiscard]] std::int64_t integer(const std::string& name) const;
  [[nodiscard]] double number(const std::string& name) const;

  // Loads the newest checkpoint that is whole, and returns its step; nothing where there is none. A
  // damaged one is told of in a warning. Learning rates of the optimisers' groups are loaded too.
  // The state of LibTorch's random generators is, where there are as many ranks. Call it once all
  // is added. Throws DataError on every rank where none can be used, or where it is of another
  // model or optimiser.
  std::optional<std::int64_t> load();
  // Takes a checkpoint, between two steps of training: returns once all is copied, and writes in
  // the background. A second one waits for the first. Throws StorageError on every rank if the one
  // before could not be written; the next call goes on. The first call locks the folder as long as
  // this lives. Throws UsageError on every rank where another program has it.
  void save(std::int64_t step);
  // Returns once the last save() is on disk: it survives a failure of the machine. Call it before
  // Session::leave(). Throws StorageError on every rank if it could not be written.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troika
