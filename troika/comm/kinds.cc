// The engines that there are: a new one is a line here, and its folder.
#include <troika/comm/kinds.h>

#include <array>

namespace troika {

std::span<const EngineKind* const> EngineKind::all() {
  static const std::array kAll = {&shm_kind(), &gloo_kind(), &mpi_kind(), &nccl_kind(),
                                  &fake_kind()};
  return kAll;
}

}  // namespace troika
