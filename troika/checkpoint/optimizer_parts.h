// Internal. The state of an optimiser of torch::optim as parts of a checkpoint: each tensor is cut
// as the parameter that it belongs to, so that ranks of any number take their own parts of it.
#pragma once

#include <troika/checkpoint/model_parts.h>
#include <troika/checkpoint/optimizer_state.h>

#include <string>
#include <vector>

namespace troika::detail {

class OptimizerParts {
 public:
  // `prefix` stands in front of every name. Throws UsageError naming a tensor that is no parameter
  // of `models`. All must outlive this.
  OptimizerParts(torch::optim::Optimizer& optimizer, std::string prefix,
                 const std::vector<ModelParts>& models);

  // Adds "<prefix><field>.<parameter>", and the learning rates of its groups as numbers
  // "<prefix>lr.<group>".
  void save(StateDict& state) const;
  // Throws DataError where the checkpoint has fields that this optimiser does not know, as that of
  // another kind has.
  void check(const StateReader& reader) const;
  // Adds the places of all fields that the checkpoint has. They are the optimiser's once
  // read_done() is called.
  void add_places(PartReader& places, const StateReader& reader);
  void read_done(const StateDict& numbers) const;

 private:
  struct Updated {
    at::Tensor tensor;  // that the optimiser updates
    Part part;          // of the model
  };
  // The values read for one parameter, in the order of fields; undefined where there is none.
  struct Read {
    std::size_t updated;
    std::vector<at::Tensor> values;
  };
  [[nodiscard]] std::string name_of(std::string_view field, const Part& part) const;

  OptimizerState state_;
  std::string prefix_;
  std::vector<Updated> updated_;
  std::vector<Read> read_;
};

}  // namespace troika::detail
