// The engines, a folder each. Internal to this folder.
#pragma once

#include <troika/comm/engine_kind.h>

namespace troika {

[[nodiscard]] const EngineKind& shm_kind();
[[nodiscard]] const EngineKind& gloo_kind();
[[nodiscard]] const EngineKind& mpi_kind();
[[nodiscard]] const EngineKind& nccl_kind();
[[nodiscard]] const EngineKind& fake_kind();

}  // namespace troika
