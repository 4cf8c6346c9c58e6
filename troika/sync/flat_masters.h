// The masters of a rank's shards end to end, for exchanges between replicas that may differ.
#pragma once

#include <ATen/core/Tensor.h>
#include <troika/base/index_range.h>
#include <troika/compress/bucket_hook.h>
#include <troika/param/arena.h>

#include <cstdint>
#include <string>
#include <vector>

namespace troika {

// Lays out what a rank exchanges. At stage 0 each rank of an island holds all of the model: it then
// exchanges a part, and gathers the others' from its island.
class FlatMasters {
 public:
  // The arena must outlive it. Frozen parameters are left out.
  explicit FlatMasters(Arena& arena);

  // Returns the elements of the flat view, and the part of a range of them that this rank
  // exchanges.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] IndexRange own_part(IndexRange range) const;

  // Returns the parts of a range: a parameter that lies in it whole has its shape, another is a
  // vector.
  [[nodiscard]] std::vector<BucketPart> parts_of(IndexRange range) const;
  // Returns the name of the parameter of an element.
  [[nodiscard]] const std::string& parameter_at(std::int64_t element) const;
  // Copy elements of masters, or gradients, to `values` [range.count], and back. Masters that are
  // written have to be published.
  void read(IndexRange range, const at::Tensor& values) const;
  void write(IndexRange range, const at::Tensor& values) const;
  void read_gradients(IndexRange range, const at::Tensor& values) const;
  void write_gradients(IndexRange range, const at::Tensor& values) const;
  // Collective over the island: completes `values` [range.count] from the ranks' parts.
  void gather(IndexRange range, const at::Tensor& values, const Call& call) const;
  // Returns an empty tensor of so many elements, of the masters' type and device.
  [[nodiscard]] at::Tensor empty(std::int64_t count) const;
  // Calls `visit(shard, begin)` for each trained shard: where it begins in the flat view.
  template <class Visit>
  void for_each_shard(const Visit& visit) const {
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      visit(arena_.trained_shards()[i], begins_[i]);
    }
  }

 private:
  template <class Visit>
  void for_each_part(IndexRange range, const Visit& visit) const;

  Arena& arena_;
  std::vector<std::int64_t> begins_;  // of each trained shard, in the flat view
  std::int64_t size_ = 0;
};

}  // namespace troika
