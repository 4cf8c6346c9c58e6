// Internal. The tensors of a model of the user's own, as parts of a checkpoint: what this rank
// writes of it, and where it wants to read what.
#pragma once

#include <troika/checkpoint/state_reader.h>
#include <troika/parallel/data_parallel/data_parallel.h>
#include <troika/parallel/pipeline/module_pipeline.h>
#include <troika/param/state_dict.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troika::detail {

// A tensor of this rank, of any strides, that is a part of one of the checkpoint. `owned` of the
// shard says whether this rank writes it.
struct Part {
  std::string name;
  ShardDescriptor shard;
  at::Tensor tensor;
};

// Adds a part to a state that is to be written. Its values are copied where they are not dense.
void add_part(StateDict& state, const Part& part);

// Places for the values of parts that are dense or not.
class PartReader {
 public:
  void add(const Part& part);
  // Returns the places that values are read to, as views.
  [[nodiscard]] std::span<const StateTensor> places() const { return places_.tensors(); }
  // Call it once they have been: parts that are not dense take their values.
  void done();

 private:
  StateDict places_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // a place, and the tensor it is for
};

// A model that a checkpoint holds. One rank of those with the same values writes each tensor: they
// are dealt out, so that all have as many bytes to copy.
class ModelParts {
 public:
  // `prefix` stands in front of every name. The model must outlive this.
  ModelParts(Replica& model, std::string prefix);
  ModelParts(ModulePipeline& model, std::string prefix);

  // Collective: adds parameters, and buffers as Trainer::state() does: averaged over the data
  // ranks, and of each data rank by itself.
  void save(StateDict& state) const;
  // Adds the places of all of it. Call read_done() once they are read.
  void add_places(PartReader& places, const StateReader& reader) const;
  void read_done() const;
  // Returns the part that an optimiser updates as `tensor`; null where it is none of this model.
  [[nodiscard]] const Part* find(const at::Tensor& tensor) const;

 private:
  [[nodiscard]] Part part_of(const ParameterShard& shard) const;
  // Add a part that this rank alone has, and one that all data ranks have.
  void add_own(Part part);
  void add_dealt(Part part);
  [[nodiscard]] std::string replica_name(int data_rank, const std::string& buffer) const;

  std::string prefix_;
  Replica* replica_ = nullptr;
  Session data_;  // the ranks with the same values
  std::vector<Part> written_, read_;
  std::vector<NamedTensor> buffers_;
  std::map<const void*, std::size_t> by_tensor_;  // in written_
  std::vector<std::int64_t> dealt_;               // bytes, by data rank
};

}  // namespace troika::detail
