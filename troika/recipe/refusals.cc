#include <troika/comm/engines.h>
#include <troika/config/toml_text.h>
#include <troika/recipe/refusals.h>

#include <array>

namespace troika {
namespace {

// clang-format off
constexpr auto kRefusals = std::to_array<Refusal>({
    {"parallel.context", "above 1", "context parallelism does not exist yet", "context = 1",
     [](const Recipe& r) { return r.parallel.context > 1; }},
    {"comm.engine", "\"nccl\", with `train.device = \"cpu\"`", "it carries tensors of GPUs, and train.device is \"cpu\"", "engine = \"auto\"",
     [](const Recipe& r) { return r.train.device == "cpu" && !traits_of_engine(r.comm.engine).carries_host_memory(); }},
    {"train.cudnn_benchmark", "true, with `deterministic = true`", "the fastest algorithm may be another one in each run, and deterministic = true", "cudnn_benchmark = false",
     [](const Recipe& r) { return r.train.cudnn_benchmark && r.train.deterministic; }},
    {"comm.engine", "\"fake\"", "it exchanges nothing, and is for troika train --dry-run", "engine = \"auto\"",
     [](const Recipe& r) { return !traits_of_engine(r.comm.engine).exchanges(); }},
});
// clang-format on

}  // namespace

std::span<const Refusal> refusals() {
  return kRefusals;
}

void refuse_unsupported(const Recipe& recipe, const Origins& origins, EngineUse engine) {
  for (const Refusal& refusal : kRefusals) {
    if (!refusal.applies(recipe)) continue;
    if (engine == EngineUse::kNotUsed && refusal.key == "comm.engine") continue;
    const std::size_t dot = refusal.key.find('.');
    const SchemaKey key =
        *recipe_schema().find(&recipe, refusal.key.substr(0, dot), refusal.key.substr(dot + 1));
    origins.fail({refusal.key}, std::string(key.key->name) + " = " + toml_value(key, &recipe) +
                                    ": " + std::string(refusal.why) + "; write " +
                                    std::string(refusal.instead));
  }
}

}  // namespace troika
