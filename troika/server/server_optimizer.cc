#include <troika/server/server_optimizer.h>

namespace troika {

OptimizerOptions optimizer_of_servers(const ServerSettings& settings,
                                      const OptimizerOptions& of_recipe) {
  if (settings.local_steps == 0) return of_recipe;
  const bool is_synchronous = settings.staleness == 0;
  return outer_optimizer(settings.outer.lr,
                         {settings.outer.momentum, /*waits_for_round=*/!is_synchronous});
}

}  // namespace troika
