// Stands in for the engine shm (shared memory between the ranks of one host), which this build does
// not have.
#include <troika/base/error.h>
#include <troika/comm/factory.h>

namespace troika::detail {

EngineFacts shm_facts() {
  return {
      .kind = EngineKind::kShm,
      .name = "shm",
      .built = false,
      .usable = false,
      .reason =
          "shared memory between the ranks of one host: this version of troika does not have it"};
}

std::shared_ptr<GroupEngine> make_shm_engine(const EngineContext&) {
  throw UsageError("engine shm is not built", "use comm.engine = \"gloo\"");
}

}  // namespace troika::detail
