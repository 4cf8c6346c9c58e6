// Parameter servers for a torch::nn::Module of the user's own: ranks pull parameters, and push
// gradients; the optimiser runs where the parameters lie (docs/loose-coupling.md). Ranks need not
// be equally fast: samples are dealt out as the run goes, and with staleness no rank waits for the
// slowest.
//
//   Net net;
//   troika::ServerStepsOptions options{.steps = 1000, .batch_size = 64, .staleness = std::nullopt};
//   troika::ServerSteps sync(net, session, options);
//   while (const auto samples = sync.next()) {  // the newest parameters are in net
//     ... loss of samples->count samples from number samples->first on; loss.backward();
//     sync.step();
//   }
//   sync.close();
//
// Tables of embeddings are too large to be pulled whole, and their rows go over the wire alone:
//
//   troika::ServerTable words = sync.table({.name = "words", .columns = 64});
//   ... net(words.lookup(ids))   // ids: int64, of any shape; a row is made when it is first seen
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/compress/codec.h>
#include <troika/optim/options.h>
#include <troika/rpc/rpc.h>
#include <troika/server/row_table.h>
#include <troika/server/server_traffic.h>
#include <troika/session/session.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace torch::nn {
class Module;
}

namespace troika {

struct ServerStepsOptions {
  std::int64_t steps = 0;                      // in all
  std::int64_t batch_size = 0;                 // samples of a step, of all ranks together
  int servers = 1;                             // the first ranks keep a part each, beside training
  std::optional<std::int64_t> staleness = 0;   // as [sync] staleness; nullopt: any
  bool divides_by_staleness = false;           // the rate of a stale update
  OptimizerOptions optimizer = {};             // its kind, weight decay (of all parameters) and lr
  double grad_clip = 0;                        // largest norm of a mean gradient; 0: any
  std::shared_ptr<const Codec> compress = {};  // int8_codec() or another, of what is pushed
  std::filesystem::path folder = {};           // where the servers save themselves; empty: nowhere
  std::int64_t save_every_steps = 0;           // and behind the last step; all ranks meet there
  Seconds lease{60};                           // who is silent for longer is no longer waited for
  // Encrypts all connections, and refuses peers without a certificate of the authority's. Without
  // it everyone who reaches a port may take part.
  std::optional<TlsFiles> tls = {};
};

// The samples of one pass, numbered from 0 to steps * batch_size over the whole run.
struct StepSamples {
  std::int64_t step = 0;  // from 1
  std::int64_t first = 0, count = 0;
};

class ServerTable;

// Each rank makes one, in the same order. Not thread safe.
class ServerSteps {
 public:
  // Collective. Gives all ranks, and the servers, the parameters and buffers of rank 0; where
  // `folder` has what servers have saved, those, and the run goes on behind it. Throws UsageError
  // on every rank where modules or options differ, for options that are out of range, and where
  // this build has no Arrow Flight.
  ServerSteps(std::shared_ptr<torch::nn::Module> module, Session session,
              ServerStepsOptions options);
  // Takes a module holder, such as those of TORCH_MODULE.
  template <class Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  ServerSteps(const Holder& module, Session session, ServerStepsOptions options)
      : ServerSteps(std::shared_ptr<torch::nn::Module>(module.ptr()), std::move(session),
                    std::move(options)) {}
  ServerSteps(ServerSteps&&) noexcept;
  ServerSteps& operator=(ServerSteps&&) noexcept;
  ~ServerSteps();

  // Waits for the next samples, with the newest parameters in the module; nullopt behind the last
  // step, where all ranks meet: all have the final parameters then, and the mean of their
  // floating-point buffers. Throws DeadlineError, PeerError.
  [[nodiscard]] std::optional<StepSamples> next();
  // Pushes the gradients that the backward pass has left, which are of a mean over `weight`
  // targets, by default the samples; and those of rows. Leaves no gradients. A gradient that is not
  // finite is not applied, and warned of.
  struct Step {
    std::optional<double> weight = {};
    std::optional<double> learning_rate = {};  // by default that of the optimiser's options
  };
  void step(const Step& how);
  void step() { step(Step()); }
  // Pushes what the module has changed since next(), as a gradient, instead: local steps of an
  // optimiser of the caller's own, on the samples of a pass, with the servers' as the outer one.
  // With SGD and Nesterov's momentum there it is DiLoCo (Douillard et al. 2023), synchronous or
  // not, and ranks need not be equally fast. The gradients of rows are those of all passes since
  // next().
  void push_change(const Step& how);
  void push_change() { push_change(Step()); }

  // Returns a table on the servers, made where there is none of this name. All ranks give the same
  // options.
  [[nodiscard]] ServerTable table(RowTableSpec spec);

  // Returns what this rank has sent and received so far.
  [[nodiscard]] ServerTraffic traffic() const;
  // Returns how many of this rank's updates were of each staleness: the updates that a server had
  // applied between its pull and its push. Empty where all push together (staleness = 0).
  [[nodiscard]] const std::map<std::int64_t, std::int64_t>& staleness() const;

  // Ends the servers. Collective; call it last, after next() has returned nullopt.
  void close();

 private:
  friend class ServerTable;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// A handle, which may be copied. Not thread safe.
class ServerTable {
 public:
  // Returns the newest rows, [..., columns], for ids [...] of int64: of the module's type, on its
  // device. Where gradients are recorded, step() pushes those of the rows. Throws UsageError for
  // ids of another type; DeadlineError, PeerError.
  [[nodiscard]] at::Tensor lookup(const at::Tensor& ids) const;

 private:
  friend class ServerSteps;
  ServerTable(std::shared_ptr<ServerSteps::Impl> owner, RowTableSpec spec)
      : owner_(std::move(owner)), spec_(std::move(spec)) {}

  std::shared_ptr<ServerSteps::Impl> owner_;
  RowTableSpec spec_;
};

}  // namespace troika
