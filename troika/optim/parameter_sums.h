// Sums over whole parameters, and over the whole model, for norms. Each rank holds shards or slices
// of them. Every rank gives a value for each of its chunks; chunks are added up in a fixed order,
// so the bits do not depend on how ZeRO cuts parameters.
#pragma once

#include <troika/base/time.h>
#include <troika/comm/group.h>
#include <troika/optim/chunks.h>
#include <troika/param/arena.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

struct SumGroups {
  // The ranks that hold other slices of the same layers.
  Group tensor = {};
  // The ranks that hold other layers.
  Group pipeline = {};
  // The names of the whole model, all stages, where `pipeline` has more than one; else the arena's
  // own.
  std::vector<std::string> names = {};
  // The time-out of one collective.
  Seconds timeout = Seconds(60);
};

class ParameterSums {
 public:
  // Sums over `arena`, which must outlive it. Throws InternalError if a name of the arena is not in
  // `groups.names`.
  explicit ParameterSums(const Arena& arena, SumGroups groups = {});

  // Collective: returns, by parameter of the arena, the sum of the chunks' values on all ranks that
  // hold some of it. `of_chunk` is indexed like chunks_of(arena); each value must be of the chunk's
  // `counted` elements. A parameter that several tensor ranks hold alike counts on the first.
  // Throws DeadlineError, PeerError.
  [[nodiscard]] std::vector<double> by_parameter(std::span<const double> of_chunk,
                                                 std::string_view label) const;
  // Collective: returns the sum over the model of by_parameter(), in the order of global names. A
  // tied replica that belongs to another pipeline stage does not count.
  [[nodiscard]] double total(std::span<const double> of_chunk, std::string_view label) const;

  // Collective: returns whether all groups of the sums carry tensors of the arena's device.
  [[nodiscard]] bool on_device() const;
  // Returns whether this rank's shards of a parameter count in total(): no other rank gives the
  // same values.
  [[nodiscard]] bool counts(std::size_t parameter) const;
  // Collective, where on_device(): returns the sum over the model of `own`, a number (0-dim) in
  // fp64 on the arena's device to which each rank adds the shards that count. The host waits for
  // no value. Where ranks cut a parameter decides on the order of additions.
  [[nodiscard]] at::Tensor total_on_device(const at::Tensor& own, std::string_view label) const;

  // Returns the deadline of a wait that begins now.
  [[nodiscard]] Deadline deadline() const { return Deadline::in(groups_.timeout); }

 private:
  // Returns the groups among which shards and slices are cut; those of one rank, too.
  [[nodiscard]] std::vector<Group> groups() const;
  // Returns whether all tensor ranks hold a parameter alike, so that it counts on the first.
  [[nodiscard]] bool alike_on_tensor_ranks(std::size_t parameter) const;
  void sum_over(const Group& group, std::span<double> values, std::string_view label) const;

  const Arena& arena_;
  SumGroups groups_;
  std::vector<std::size_t>
      first_chunk_;  // by parameter, among all chunks of all its shards; and an end
  std::vector<std::size_t> chunk_index_;  // by own chunk, among all
  std::vector<std::size_t> row_;          // by parameter, among the names of the model
  std::size_t rows_ = 0;
};

}  // namespace troika
