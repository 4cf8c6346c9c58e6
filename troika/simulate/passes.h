// The passes of simulated workers: a real trainer of the whole model, which serves all of them in
// turn, each at the parameters that it has.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/recipe/recipe.h>
#include <troika/server/server_shard.h>
#include <troika/sync/remote.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troika {

class Passes {
 public:
  // `recipe` is resolved for one rank. Throws as a Trainer does. With `takes_local_steps` a pass is
  // the recipe's local steps, and gives what these change: each worker has an optimiser of its own.
  explicit Passes(const Recipe& recipe, bool takes_local_steps = false);
  ~Passes();

  [[nodiscard]] const Recipe& recipe() const;
  // Return the values that workers and servers exchange, and the bytes of one.
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t value_bytes() const;
  // Returns how many values the buckets have in which gradients are added up, padding included.
  [[nodiscard]] std::vector<std::int64_t> buckets() const;
  // Returns the part of them that a server keeps.
  [[nodiscard]] IndexRange range(int shard, int shards) const;
  // Returns a server's part with the initial values, and their optimiser.
  [[nodiscard]] std::unique_ptr<ServerShard> make_shard(int shard, int shards) const;
  // Returns memory for so many values.
  [[nodiscard]] at::Tensor empty(std::int64_t count) const;

  // Computes gradients at `values` [size()], and puts them there. Throws NonFiniteError where the
  // recipe says so.
  [[nodiscard]] RemoteUpdate differentiate(const DealtSamples& samples, const at::Tensor& values);
  // Returns the recipe's held-out loss at these values; nothing where no samples are held out.
  [[nodiscard]] std::optional<double> held_out_loss(const at::Tensor& values);
  // Measures a pass over so many samples: the median of some, in s.
  [[nodiscard]] double measure(std::int64_t samples);

 private:
  class PassSync;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace troika
