// Lets a script use our metrics:
//   metrics_tool LOSS FILE WORD ...   reads `outputs` [samples, n] and `targets` from a safetensors
//                                     file, and prints a line of JSON with the value of each metric
// The samples are added in three parts, as microbatches add them.
#include <ATen/ATen.h>
#include <troika/base/error.h>
#include <troika/checkpoint/tensors.h>
#include <troika/loss/metric.h>
#include <troika/nn/tensor_map.h>

#include <exception>
#include <iomanip>
#include <iostream>
#include <limits>
#include <span>

#include "support/tool_main.h"

namespace troika {
namespace {

int run(std::span<char*> arguments) {
  if (arguments.size() < 4) return 2;
  TensorMap tensors;
  for (const NamedTensor& each : load_tensors(arguments[2])) tensors.set(each.name, each.tensor);
  const at::Tensor &outputs = tensors.at("outputs"), &targets = tensors.at("targets");
  const MetricSubject subject{"mlp", &LossOptions::named(arguments[1]).kind(), outputs.size(1),
                              true};
  std::cout << "{" << std::setprecision(std::numeric_limits<double>::max_digits10);
  bool first = true;
  for (const std::string_view word : arguments.subspan(3)) {
    const std::string refusal = metric_refusal(word, subject);
    if (!refusal.empty()) throw UsageError(refusal);
    const auto metric = find_metric(word)->make(word, subject);
    const auto x = outputs.tensor_split(3), y = targets.tensor_split(3);
    for (std::size_t i = 0; i < x.size(); ++i) metric->add(x[i], y[i]);
    const auto value = metric->value(metric->sums(), metric->rows(), 0);
    std::cout << (first ? "" : ", ") << "\"" << word << "\": ";
    value ? std::cout << *value : std::cout << "null";
    first = false;
  }
  std::cout << "}\n";
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) {
  return troika::test::tool_main(argc, argv, troika::run);
}
