#include <torch/torch.h>
#include <troika/base/error.h>
#include <troika/server/server_steps_options.h>

#include <sstream>

namespace troika {

void check_options(const ServerStepsOptions& options, int ranks) {
  const auto refuse = [](const std::string& what) { throw UsageError("ServerSteps: " + what); };
  if (options.steps < 1) refuse("steps = " + std::to_string(options.steps) + "; at least 1");
  if (options.batch_size < ranks) {
    refuse("batch_size = " + std::to_string(options.batch_size) + ", and " + std::to_string(ranks) +
           " ranks; at least a sample for each");
  }
  if (options.servers < 1 || options.servers > ranks) {
    refuse("servers = " + std::to_string(options.servers) + "; from 1 to the number of ranks, " +
           std::to_string(ranks));
  }
  if (options.staleness && *options.staleness < 0) refuse("staleness is negative");
  if (!(options.grad_clip >= 0)) refuse("grad_clip is negative");
  if (options.save_every_steps < 0) refuse("save_every_steps is negative");
  if (options.save_every_steps > 0 && options.folder.empty()) {
    refuse("save_every_steps without a folder");
  }
  if (options.servers > 1 && options.optimizer.kind.kind().uses_layer_norms()) {
    refuse(std::string(options.optimizer.kind.name()) +
           " goes by the norms of whole parameters, which several servers cut");
  }
}

std::string description_of(const torch::nn::Module& module, const ServerStepsOptions& options) {
  std::ostringstream text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text << name << " " << tensor.sizes() << " " << tensor.scalar_type()
         << (tensor.requires_grad() ? "" : " frozen") << "\n";
  };
  for (const auto& each : module.named_parameters()) add(each.key(), each.value());
  for (const auto& each : module.named_buffers()) add(each.key(), each.value());
  text << "steps " << options.steps << "\nbatch_size " << options.batch_size << "\nservers "
       << options.servers << "\nstaleness "
       << (options.staleness ? std::to_string(*options.staleness) : "any") << "\noptimizer "
       << options.optimizer.kind.name() << "\nsave_every_steps " << options.save_every_steps
       << "\ncompress " << (options.compress ? options.compress->describe() : "none") << "\n";
  return text.str();
}

}  // namespace troika
