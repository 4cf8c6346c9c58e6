// The metrics of one evaluation, over all ranks.
#pragma once

#include <troika/comm/group.h>
#include <troika/data/dataset.h>
#include <troika/loss/metric.h>
#include <troika/nn/microbatch.h>
#include <troika/observe/metrics.h>
#include <troika/recipe/recipe.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troika {

class MetricFold {
 public:
  // Makes the [train] metrics of a valid recipe. They judge values in the unit of the data. Where
  // the data name several values, "rmse" is followed by "rmse_NAME" of each.
  MetricFold(const Recipe& recipe, const Dataset& data);

  // Returns whether a metric needs the predictions of the model.
  [[nodiscard]] bool needs_outputs() const { return needs_outputs_; }
  // Takes outputs [samples, n] and targets of some of this rank's samples.
  void add(const at::Tensor& outputs, const at::Tensor& targets);
  // Collective: computes the values from what all ranks of `group` have added. Each sample must
  // have been added on one rank. A metric without a value is left out. Throws DeadlineError,
  // PeerError.
  [[nodiscard]] std::vector<NamedValue> values(const Group& group, double mean_loss,
                                               const Call& call) const;

 private:
  struct Named {
    std::string name;
    std::unique_ptr<Metric> metric;
    std::optional<std::int64_t> value;  // the only one that it judges
  };
  std::vector<Named> metrics_;
  std::vector<ValueScale> scales_;
  bool takes_classes_ = false;
  bool needs_outputs_ = false;
};

}  // namespace troika
