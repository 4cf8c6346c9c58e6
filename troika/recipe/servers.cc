// What [sync] kind = "server" goes with.
#include <troika/base/text.h>
#include <troika/recipe/validate.h>

#include <string>
#include <string_view>

namespace troika {

void check_local_steps(const Recipe& recipe, const Origins& origins) {
  const auto settings = recipe.sync.kind().servers(recipe.sync.options());
  if (!settings || settings->local_steps == 0) return;
  const std::int64_t replicas = recipe.parallel.islands * recipe.parallel.data.value_or(1);
  const std::int64_t samples = recipe.train.global_batch_size / replicas;
  if (samples >= settings->local_steps) return;
  origins.fail(
      {"sync.local_steps", "train.global_batch_size"},
      "local_steps = " + std::to_string(settings->local_steps) +
          " do not get a sample each: a data rank of a worker has " + plural(samples, "sample") +
          " of global_batch_size = " + std::to_string(recipe.train.global_batch_size),
      "write global_batch_size = " + std::to_string(replicas * settings->local_steps) + " or more");
}

void check_servers(const Recipe& recipe, const Origins& origins) {
  const SecurityOptions& security = recipe.security;
  const bool lacks_file =
      security.certificate == "none" || security.key == "none" || security.authority == "none";
  if (security.tls && lacks_file) {
    origins.fail({"security.tls"},
                 "tls = true needs the files of a certificate, its key and the authority",
                 "set security.certificate, security.key and security.authority");
  }
  const auto settings = recipe.sync.kind().servers(recipe.sync.options());
  if (!settings) return;
  const auto refuse = [&](std::string_view key, const std::string& why, const std::string& hint) {
    origins.fail({"sync.kind", key}, "kind = \"server\" with " + std::string(key) + ": " + why,
                 hint);
  };
  const std::int64_t axes =
      recipe.parallel.tensor * recipe.parallel.pipeline * recipe.parallel.data.value_or(1);
  if (axes > settings->island) {
    const char* const key = recipe.parallel.tensor > 1     ? "parallel.tensor"
                            : recipe.parallel.pipeline > 1 ? "parallel.pipeline"
                                                           : "parallel.data";
    refuse(
        key,
        "[parallel] lays out the ranks of a worker, which has " + plural(settings->island, "rank"),
        "write sync.island = " + std::to_string(axes));
  }
  if (recipe.train.precision == Precision::kFloat16) {
    refuse("train.precision", "fp16 has one loss scale for all, and workers do not meet",
           "write precision = \"bf16\"");
  }
  if (settings->servers > 1 && settings->local_steps == 0 &&
      recipe.optimizer.kind.kind().uses_layer_norms()) {
    refuse("optimizer.kind",
           std::string(recipe.optimizer.kind.name()) +
               " goes by the norms of whole parameters, which several servers cut",
           "write servers = 1");
  }
  if (!recipe.debug.dump_steps.empty()) {
    refuse("debug.dump_steps", "gradients are those of each worker", "write dump_steps = []");
  }
  if (recipe.debug.ledger) {
    refuse("debug.ledger", "samples are dealt out as the run goes", "write ledger = false");
  }
  if (recipe.debug.compare_replicas_every_steps > 0) {
    refuse("debug.compare_replicas_every_steps", "workers have no replicas to compare",
           "write compare_replicas_every_steps = 0");
  }
  if (!recipe.observe.trace_steps.empty()) {
    refuse("observe.trace_steps", "there is no trace of workers", "write trace_steps = []");
  }
}

}  // namespace troika
