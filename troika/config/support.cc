#include <troika/config/fields.h>
#include <troika/config/support.h>
#include <troika/config/toml_text.h>

#include <array>

namespace troika {
namespace {

bool several_data_ranks(const Recipe& recipe) {
  return recipe.parallel.data != 1;
}

// clang-format off
constexpr auto kRefusals = std::to_array<Refusal>({
    {"parallel.tensor", "above 1", "tensor parallelism", "tensor = 1",
     [](const Recipe& r) { return r.parallel.tensor > 1; }},
    {"parallel.pipeline", "above 1", "pipeline parallelism", "pipeline = 1",
     [](const Recipe& r) { return r.parallel.pipeline > 1; }},
    {"parallel.context", "above 1", "context parallelism", "context = 1",
     [](const Recipe& r) { return r.parallel.context > 1; }},
    {"parallel.zero_stage", "above 0, unless data = 1", "sharding over the data axis (ZeRO)", "zero_stage = 0",
     [](const Recipe& r) { return r.parallel.zero_stage > 0 && several_data_ranks(r); }},
    {"parallel.shard", "above 0, unless data = 1", "sharding over the data axis (ZeRO)", "shard = 0",
     [](const Recipe& r) { return r.parallel.shard > 0 && several_data_ranks(r); }},
    {"parallel.offload", "other than \"none\"", "offloading", "offload = \"none\"",
     [](const Recipe& r) { return r.parallel.offload != Offload::kNone; }},
    {"parallel.activation_checkpoint", "other than \"none\"", "recomputing activations", "activation_checkpoint = \"none\"",
     [](const Recipe& r) { return r.parallel.activation_checkpoint != ActivationCheckpoint::kNone; }},
    {"comm.engine", "\"nccl\"", "training on GPUs", "engine = \"auto\"",
     [](const Recipe& r) { return r.comm.engine == EngineKind::kNccl; }},
    {"comm.engine", "\"fake\"", "a dry run, in which nothing is exchanged,", "engine = \"auto\"",
     [](const Recipe& r) { return r.comm.engine == EngineKind::kFake; }},
});
// clang-format on

}  // namespace

std::span<const Refusal> refusals() {
  return kRefusals;
}

void refuse_unsupported(const Recipe& recipe, const Origins& origins) {
  for (const Refusal& refusal : kRefusals) {
    if (!refusal.applies(recipe)) continue;
    const std::size_t dot = refusal.key.find('.');
    const Field* field =
        find_field(refusal.key.substr(0, dot), refusal.key.substr(dot + 1), recipe.model.kind);
    origins.fail({refusal.key}, std::string(field->key) + " = " + toml_value(recipe, *field) +
                                    ": " + std::string(refusal.feature) +
                                    " does not exist yet; write " + std::string(refusal.instead));
  }
}

}  // namespace troika
