// The functions by which make_group() reaches the engines, one a folder. An engine that is not
// built is a stub that refuses by name.
#pragma once

#include <troika/comm/engines.h>
#include <troika/comm/group.h>

#include <memory>
#include <string>
#include <vector>

namespace troika::detail {

class Meeting;

// For a group of two or more.
struct EngineContext {
  const std::string& axis;
  const std::vector<int>& ranks;
  int index;
  const EngineOptions& options;
};

[[nodiscard]] std::shared_ptr<GroupEngine> make_gloo_engine(const EngineContext& context,
                                                            Meeting& meeting);
[[nodiscard]] std::shared_ptr<GroupEngine> make_fake_engine(const EngineContext& context);
[[nodiscard]] std::shared_ptr<GroupEngine> make_shm_engine(const EngineContext& context,
                                                           Meeting& meeting);
// Collective: whether all members can reach each other's memory.
[[nodiscard]] bool share_a_host(Meeting& meeting);
[[nodiscard]] std::shared_ptr<GroupEngine> make_mpi_engine(const EngineContext& context);
[[nodiscard]] std::shared_ptr<GroupEngine> make_nccl_engine(const EngineContext& context);

[[nodiscard]] EngineFacts gloo_facts();
[[nodiscard]] EngineFacts fake_facts();
[[nodiscard]] EngineFacts shm_facts();
[[nodiscard]] EngineFacts mpi_facts();
[[nodiscard]] EngineFacts nccl_facts();

}  // namespace troika::detail
