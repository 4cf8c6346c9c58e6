// Stands in for the engine nccl (NCCL, between GPUs), which this build does not have.
#include <troika/base/error.h>
#include <troika/comm/factory.h>

namespace troika::detail {

EngineFacts nccl_facts() {
  return {.kind = EngineKind::kNccl,
          .name = "nccl",
          .built = false,
          .usable = false,
          .reason = "NCCL, between GPUs: this version of troika does not have it"};
}

std::shared_ptr<GroupEngine> make_nccl_engine(const EngineContext&) {
  throw UsageError("engine nccl is not built", "use comm.engine = \"gloo\"");
}

}  // namespace troika::detail
