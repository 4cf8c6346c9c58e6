// Stands in for the engine mpi (the system's MPI, for clusters and InfiniBand), which this build
// does not have.
#include <troika/base/error.h>
#include <troika/comm/factory.h>

namespace troika::detail {

EngineFacts mpi_facts() {
  return {
      .kind = EngineKind::kMpi,
      .name = "mpi",
      .built = false,
      .usable = false,
      .reason =
          "the system's MPI, for clusters and InfiniBand: this version of troika does not have it"};
}

std::shared_ptr<GroupEngine> make_mpi_engine(const EngineContext&) {
  throw UsageError("engine mpi is not built", "use comm.engine = \"gloo\"");
}

}  // namespace troika::detail
