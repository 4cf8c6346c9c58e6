#include <troika/server/server_optimizer.h>

namespace troika {

OptimizerOptions optimizer_of_servers(const ServerSettings& settings,
                                      const OptimizerOptions& of_recipe, std::int64_t workers) {
  if (settings.local_steps == 0) return of_recipe;
  const std::int64_t pushes = settings.staleness == 0 ? 1 : workers;
  return outer_optimizer(settings.outer.lr, {settings.outer.momentum, pushes});
}

}  // namespace troika
